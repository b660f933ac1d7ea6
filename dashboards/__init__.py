"""The web dashboard, which reads the index."""
