"""`loam decide`."""
