"""Parquet and JSON Lines tables, document shards and the workers that write them."""
