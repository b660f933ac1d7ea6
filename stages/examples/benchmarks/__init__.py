"""The stage benchmarks and its formats, one per file."""
