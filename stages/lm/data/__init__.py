"""Batches, their order, and rows of conversations and pairs."""
