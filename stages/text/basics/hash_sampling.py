"""Choosing records by hash: the same records on every machine, in any order, whatever else is in the collection.

Guarantee: a record's draw depends on the seed, the purpose and its own key only, so adding records never reshuffles the
others, and two purposes (validation, a sample for the tokenizer) choose independently. Cost: one BLAKE2b per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np


def hash_value(seed: int, purpose: str, key: bytes | str) -> int:
    """A uniform 64-bit number for one record. key: its doc_id bytes or normalised text."""
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(blake2b(data, digest_size=8, key=f"{seed}:{purpose}".encode()[:64]).digest(), "big")


def hash_values(seed: int, purpose: str, keys: Sequence[bytes]) -> np.ndarray:
    """`draw` for many keys, uint64 of their number."""
    return np.fromiter((hash_value(seed, purpose, key) for key in keys), dtype=np.uint64, count=len(keys))


def is_sampled(seed: int, purpose: str, key: bytes | str, share: float) -> bool:
    """Whether a record belongs to a hash-chosen `share` (0 … 1) of all records."""
    return hash_value(seed, purpose, key) < int(share * 2.0**64)


def lowest(numbers: np.ndarray, sizes: np.ndarray, limit: int) -> np.ndarray:
    """Which records to take, lowest draw first, until their sizes reach `limit`: bool of the shape of `numbers`.

    The record that crosses the limit is left out, and all after it; at least one record is taken where there is one.
    """
    order = np.argsort(numbers, kind="stable")
    taken = int(np.searchsorted(np.cumsum(sizes[order]), limit, side="right"))
    chosen = np.zeros(numbers.size, dtype=bool)
    chosen[order[: max(taken, 1)]] = True
    return chosen
