"""`loam sweep`."""
