"""Queries about recipes and records. They change no artifact and no run record; `lineage.give_name` alone writes a name."""
