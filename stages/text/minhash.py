"""Word shingles and MinHash signatures of texts, and their exact Jaccard similarity.

Guarantee: a shingle is the hash of n successive words (casefolded runs of `\\w`), so layout and punctuation do not count;
`jaccard` is exact on the sets of 64-bit shingle hashes. Cost: about 3 MB/s per core, nearly all of it datasketch's signatures.
Source: Broder 1997; datasketch's MinHash (scheme affine64); word hashes are xxh3.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from stages.text.ngrams import normalise_words

if TYPE_CHECKING:
    from datasketch import MinHash

BATCH_SHINGLES = 8192  # datasketch builds a matrix of shingles x permutations
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd: multiplication modulo 2**64 is a bijection


def text_hash(text: str) -> bytes:
    """32 bytes that are equal for texts equal up to Unicode composition and white space."""
    return hashlib.sha256(" ".join(unicodedata.normalize("NFC", text).split()).encode()).digest()


def shingles(text: str, n: int) -> np.ndarray:
    """uint64 [shingles], sorted and distinct: the hashes of the text's n-word shingles; a shorter text is one shingle."""
    import xxhash

    words = normalise_words(text)
    if not words:
        return np.empty(0, np.uint64)
    memory: dict[str, int] = {}
    for word in words:
        if word not in memory:
            memory[word] = xxhash.xxh3_64_intdigest(word)
    hashes = np.fromiter((memory[w] for w in words), np.uint64, len(words))
    length = min(n, len(words))
    windows = len(words) - length + 1
    value = np.zeros(windows, np.uint64)
    for k in range(length):
        value = value * _BASE + hashes[k : k + windows]
    value ^= value >> np.uint64(31)
    return np.unique(value)


def signature(hashes: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """uint64 [permutations]: datasketch's MinHash of a shingle set."""
    from datasketch import MinHash

    sketch = MinHash(num_perm=permutations, seed=seed, hashfunc=int, scheme="affine64")
    for start in range(0, len(hashes), BATCH_SHINGLES):
        sketch.update_batch(hashes[start : start + BATCH_SHINGLES])
    return sketch.hashvalues


def as_minhash(values: np.ndarray, seed: int) -> MinHash:
    """A signature as datasketch's object, for its LSH."""
    from datasketch import MinHash

    return MinHash(num_perm=len(values), seed=seed, hashvalues=values, hashfunc=int, scheme="affine64")


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """|a ∩ b| / |a ∪ b| of two sorted sets; 0.0 when both are empty.

    >>> jaccard(np.array([1, 2, 3], np.uint64), np.array([2, 3, 4], np.uint64))
    0.5
    """
    common = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - common
    return common / union if union else 0.0
