"""The web dashboard: reads the index and the manifests."""
