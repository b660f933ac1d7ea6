"""Signals, rules, repairs and redaction of the filter stage."""
