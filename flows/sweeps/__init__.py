"""Sweeps: one recipe with several settings, compared by the loss of what they train."""
