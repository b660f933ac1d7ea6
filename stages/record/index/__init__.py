"""The DuckDB index over manifests and run records, and the limits of a query."""
