"""Words, MinHash signatures, clusters and n-grams: what deduplication and decontamination compare."""
