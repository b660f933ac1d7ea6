"""Packed sequences and the phases of a mixture."""
