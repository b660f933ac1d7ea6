"""Pure functions of strings and arrays."""
