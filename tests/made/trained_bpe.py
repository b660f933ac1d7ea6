"""Trains a tokenizer on texts in memory, with the code of the stage train_tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from stages.tokens.train_tokenizer.bpe_training import train_on_words
from stages.tokens.train_tokenizer.word_counts import contents, counted_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int, min_frequency: int = 2) -> Tokenizer:
    """Returns a tokenizer of exactly `vocab_size` tokens, special tokens included. Its words fit into one table of counts.

    Args:
        texts: Training texts.
        vocab_size: Number of tokens.
        min_frequency: Smallest number of occurrences at which a pair of tokens becomes a token.

    `train_on_words` says what it raises.
    """
    encoded = [text.encode() for text in texts]
    batch = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])
    parts = [contents(table) for table in counted_words([batch])]
    assert len(parts) < 2, "a word would be in several parts"
    size = sum(len(part.counts) for part in parts), sum(len(part.data) for part in parts)
    return train_on_words(parts, size, vocab_size, min_frequency)
