"""Samples records by hash: the same records on every machine, in any order, whatever other records the collection has.

Guarantee: the hash value of a record depends only on the seed, the purpose and the record's own key. So adding records never changes the
choice among the others, and two purposes (validation, a sample for the tokenizer) choose independently.
Cost: one BLAKE2b per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np


def hash_value(seed: int, purpose: str, key: bytes | str) -> int:
    """Returns a uniform 64-bit number for one record. key: its doc_id bytes or normalised text."""
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(blake2b(data, digest_size=8, key=f"{seed}:{purpose}".encode()[:64]).digest(), "big")


def hash_values(seed: int, purpose: str, keys: Sequence[bytes]) -> np.ndarray:
    """Returns `hash_value` for many keys, uint64 [keys]."""
    return np.fromiter((hash_value(seed, purpose, key) for key in keys), dtype=np.uint64, count=len(keys))


def is_sampled(seed: int, purpose: str, key: bytes | str, share: float) -> bool:
    """Returns whether a record belongs to the hash sample of size `share` (0 to 1) of all records."""
    return hash_value(seed, purpose, key) < int(share * 2.0**64)


def lowest(numbers: np.ndarray, sizes: np.ndarray, limit: int) -> np.ndarray:
    """Returns which records to take, lowest hash value first, until their sizes reach `limit`: bool of the shape of `numbers`.

    The record that would exceed the limit is left out, and so are all records after it. At least one record is taken if there is one.

    Args:
        numbers: Hash values, uint64.
        sizes: Size of each record, in the unit of `limit`.
        limit: Largest sum of sizes.
    """
    order = np.argsort(numbers, kind="stable")
    taken = int(np.searchsorted(np.cumsum(sizes[order]), limit, side="right"))
    chosen = np.zeros(numbers.size, dtype=bool)
    chosen[order[: max(taken, 1)]] = True
    return chosen
