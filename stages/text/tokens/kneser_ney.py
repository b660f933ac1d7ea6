"""Baselines that a language model has to beat: a unigram and an interpolated Kneser-Ney trigram over token ids.

Guarantee: for every history the probabilities of all tokens sum to one. Nothing is pruned.
Cost: sorting the trigrams takes about 0.5 s and 100 MB per million tokens; a lookup is a binary search.
Source: Kneser and Ney 1995; interpolated form with one discount per order, n1 / (n1 + 2 n2), as in Chen and Goodman 1999, ending in a
uniform distribution over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Level:
    """One order: counts of n-grams, and for each history their sum and the number of different continuations. Keys are sorted."""

    key: np.ndarray  # int64 [ngrams], history * vocab_size + token
    count: np.ndarray  # int64 [ngrams]
    history: np.ndarray  # int64 [histories]
    total: np.ndarray  # int64 [histories]
    kinds: np.ndarray  # int64 [histories]
    discount: float


@dataclass(frozen=True)
class KneserNey:
    """A fitted trigram model. levels: unigram, bigram, trigram. The lower two hold continuation counts."""

    vocab_size: int
    levels: tuple[Level, Level, Level]


def fit(segments: Sequence[np.ndarray], vocab_size: int) -> KneserNey:
    """Returns a model with the n-gram counts of the given segments.

    The first token of a segment is given, not predicted.

    Args:
        segments: Segments of token ids, int64 [tokens] each, counted independently of each other.
        vocab_size: Number of token ids.

    Raises:
        ValueError: The vocabulary is larger than 2**20 tokens, or no segment has two tokens.
    """
    if vocab_size > 1 << 20:
        raise ValueError(f"A trigram of a vocabulary of {vocab_size:,} tokens does not fit 64 bits; at most {1 << 20:,} do.")
    parts = [_trigrams(segment) for segment in segments if len(segment) > 1]
    if not parts:
        raise ValueError("There is no segment of two tokens or more to count.")
    u, v, w = (np.concatenate([part[i] for part in parts]) for i in range(3))
    key, count = np.unique((u * vocab_size + v) * vocab_size + w, return_counts=True)
    trigram = _level(key, count, vocab_size)
    bigram = _level(*np.unique(key % vocab_size**2, return_counts=True), vocab_size)
    unigram = _level(*np.unique(bigram.key % vocab_size, return_counts=True), vocab_size)
    return KneserNey(vocab_size, (unigram, bigram, trigram))


def segment_logprobs(model: KneserNey, segment: np.ndarray) -> np.ndarray:
    """Returns natural log-probabilities of segment[1:], float64."""
    logs: np.ndarray = np.log(probability(model, *_trigrams(segment)))
    return logs


def probability(model: KneserNey, u: np.ndarray, v: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns P(w | u v) for arrays of token ids, float64."""
    p = np.full(w.shape, 1.0 / model.vocab_size)
    for level, history in zip(model.levels, (np.zeros_like(w), v, u * model.vocab_size + v), strict=True):
        p = _interpolated(level, history, w, model.vocab_size, p)
    return p


def unigram_logprobs(counts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Returns natural log-probabilities under add-one smoothed counts (int64 [vocab_size])."""
    logs: np.ndarray = np.log((counts[tokens] + 1.0) / (counts.sum() + counts.size))
    return logs


def _trigrams(segment: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (u, v, w) for each token after the first. The history of the second token is the first token twice."""
    padded = np.concatenate([segment[:1], segment]).astype(np.int64)
    return padded[:-2], padded[1:-1], padded[2:]


def _level(key: np.ndarray, count: np.ndarray, vocab_size: int) -> Level:
    history, first = np.unique(key // vocab_size, return_index=True)
    total = np.add.reduceat(count, first)
    kinds = np.diff(np.append(first, len(key)))
    once, twice = int((count == 1).sum()), int((count == 2).sum())
    discount = once / (once + 2 * twice) if once and twice else 0.5
    return Level(key, count, history, total, kinds, discount)


def _interpolated(level: Level, history: np.ndarray, w: np.ndarray, vocab_size: int, lower: np.ndarray) -> np.ndarray:
    at, known = _find(level.history, history)
    entry, seen = _find(level.key, history * vocab_size + w)
    total = np.where(known, level.total[at], 1)
    own = np.where(seen, level.count[entry] - level.discount, 0.0) / total
    rest = level.discount * level.kinds[at] / total
    return np.where(known, own + rest * lower, lower)


def _find(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return at, keys[at] == wanted
