"""Questions about recipes and records, read-only: nothing here writes to a home."""
