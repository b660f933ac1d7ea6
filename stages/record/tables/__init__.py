"""Parquet and JSON Lines tables, document shards, and the worker processes that write them."""
