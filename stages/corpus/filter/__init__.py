"""The stage filter: signals and rules of quality."""
