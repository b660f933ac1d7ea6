"""The stage train_tokenizer: learns the merges."""
