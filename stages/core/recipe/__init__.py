"""Reads a recipe: YAML, its sections, --set, and the messages of its errors."""
