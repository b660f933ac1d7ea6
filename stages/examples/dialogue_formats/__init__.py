"""Formats of chats and preference pairs."""
