"""One file per loss."""
