"""Training, checking and loading of tokenizers."""
