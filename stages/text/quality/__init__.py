"""Signals, rules, Unicode repair and redaction of the filter stage."""
