"""The DuckDB index over manifests and run records, and what a query may do."""
