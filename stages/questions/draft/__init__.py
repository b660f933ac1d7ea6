"""Drafts a first recipe: what the given files are, what the machine can train, and the recipe as commented YAML."""
