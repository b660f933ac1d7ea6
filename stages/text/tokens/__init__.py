"""The tokenizer, and token spans packed into sequences."""
