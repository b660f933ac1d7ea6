"""Items of benchmarks and dialogues, and their tables."""
