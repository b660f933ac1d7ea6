"""Sequences, pairs and their order."""
