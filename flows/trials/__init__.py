"""Runs of one recipe with other settings or seeds, whose results are compared."""
