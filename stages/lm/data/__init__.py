"""Batches, their order, and sequences made of conversations and preference pairs."""
