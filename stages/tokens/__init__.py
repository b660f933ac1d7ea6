"""From documents to packed sequences of ids: the stages train_tokenizer, encode and mix, and what they share."""
