"""Conversations, preference pairs and benchmark items."""
