"""The stage dedup: exact and similar copies."""
