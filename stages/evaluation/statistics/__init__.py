"""Estimates with their errors, and verdicts on them."""
