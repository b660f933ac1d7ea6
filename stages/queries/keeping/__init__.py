"""What the maintenance of a home shows: what its scratch folders hold."""
