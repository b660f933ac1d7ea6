"""Language, words, n-grams and hashing of texts."""
