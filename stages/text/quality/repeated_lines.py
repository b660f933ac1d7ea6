"""Lines or paragraphs that recur over a source's documents: navigation, licences, notices.

Guarantee: equal means equal up to white space, within one source; of every repeated one the first occurrences in canonical order
stay. Two different lines count as one when their 64-bit hashes collide: expected once in a corpus of some billion different
lines. Cost: about 80 MB/s to hash; grouping holds `SHARE` occurrences at a time, 16 bytes each. Source: CCNet (Wenzek et al.
2020) drops all but the first of a paragraph; xxh3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHARE = 1 << 24
SEPARATORS = {"line": "\n", "paragraph": "\n\n"}
OCCURRENCE = np.dtype([("key", "<u8"), ("number", "<u4"), ("part", "<u4")])


@dataclass(frozen=True)
class Repeated:
    """Every occurrence of the parts that are cut somewhere: rank 0 is the first, times how often it occurs in all."""

    number: np.ndarray  # uint32: the document in canonical order
    part: np.ndarray  # uint32: which line or paragraph of it
    rank: np.ndarray  # int64
    times: np.ndarray  # int64


def occurrences(text: str, source: str, number: int, unit: str, min_chars: int) -> np.ndarray:
    """OCCURRENCE of every line or paragraph with at least min_chars characters, white space squeezed. number: of the document."""
    from xxhash import xxh3_64_intdigest

    keys, parts = [], []
    for part, piece in enumerate(text.split(SEPARATORS[unit])):
        if len(piece) >= min_chars and len(words := " ".join(piece.split())) >= min_chars:
            keys.append(xxh3_64_intdigest(f"{source}\0{words}".encode("utf-8", "surrogatepass")))
            parts.append(part)
    found = np.empty(len(keys), OCCURRENCE)
    found["key"], found["number"], found["part"] = keys, number, parts
    return found


def by_key(found: Sequence[np.ndarray]) -> np.ndarray:
    """Occurrences of many documents as one array sorted by key."""
    together = np.concatenate([*found, np.empty(0, OCCURRENCE)])
    return together[np.argsort(together["key"], kind="stable")]


def repeated(shards: Sequence[np.ndarray], most: int) -> list[Repeated]:
    """What occurs more than `most` times. shards: OCCURRENCE arrays sorted by key (arrays or memory-mapped files)."""
    shares = max(1, -(-sum(len(shard) for shard in shards) // SHARE))
    edges = [(k << 64) // shares for k in range(shares + 1)]
    found = []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        parts = [shard[_cut(shard, low) : _cut(shard, high)] for shard in shards]
        mine = np.concatenate([*parts, np.empty(0, OCCURRENCE)])
        mine = mine[np.lexsort((mine["part"], mine["number"], mine["key"]))]
        starts = np.flatnonzero(np.concatenate((np.ones(min(len(mine), 1), bool), mine["key"][1:] != mine["key"][:-1])))
        times = np.diff(np.append(starts, len(mine)))
        rank = np.arange(len(mine)) - np.repeat(starts, times)
        many = np.repeat(times, times) > most
        found.append(Repeated(mine["number"][many], mine["part"][many], rank[many], np.repeat(times, times)[many]))
    return found


def without(text: str, unit: str, parts: set[int]) -> str:
    """The text without the lines or paragraphs of these numbers.

    >>> without("a\\nb\\nc", "line", {1})
    'a\\nc'
    """
    return SEPARATORS[unit].join(piece for number, piece in enumerate(text.split(SEPARATORS[unit])) if number not in parts)


def _cut(shard: np.ndarray, key: int) -> int:
    return len(shard) if key >= 1 << 64 else int(np.searchsorted(shard["key"], np.uint64(key)))
