"""Words, MinHash signatures, clusters and n-grams: the comparisons of deduplication and decontamination."""
