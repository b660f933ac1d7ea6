"""Finds lines or paragraphs that repeat across the documents of a source, such as navigation, licences and notices.

Guarantee: two parts are equal if they differ only in white space and belong to the same source. Of every repeated part the first
occurrences in canonical order are kept. Two different lines are treated as equal if their 64-bit hashes collide; one such collision is
expected in a corpus of some billion different lines.
Cost: hashing runs at about 80 MB/s. Grouping holds about `SHARE` occurrences at a time, 16 bytes each.
Source: CCNet (Wenzek et al. 2020) drops all but the first occurrence of a paragraph; xxh3.
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
    """Occurrences of the parts that are cut somewhere, as arrays of equal length.

    `rank` is 0 for the first occurrence of a part. `times` is the number of all its occurrences.
    """

    number: np.ndarray  # uint32: number of the document in canonical order
    part: np.ndarray  # uint32: number of the line or paragraph in the document
    rank: np.ndarray  # int64
    times: np.ndarray  # int64


def occurrences(text: str, source: str, number: int, unit: str, min_chars: int) -> np.ndarray:
    """Returns the OCCURRENCE array of every line or paragraph that has at least `min_chars` characters after white space is squeezed.

    Args:
        text: The document.
        source: Name of its source; equal parts of different sources get different keys.
        number: Number of the document in canonical order.
        unit: "line" or "paragraph".
        min_chars: Shortest part, in characters.
    """
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
    """Returns the occurrences of many documents as one array sorted by key."""
    together = np.concatenate([*found, np.empty(0, OCCURRENCE)])
    return together[np.argsort(together["key"], kind="stable")]


def repeated(shards: Sequence[np.ndarray], most: int) -> list[Repeated]:
    """Returns the occurrences of all parts that occur more than `most` times, one entry per range of keys.

    Args:
        shards: OCCURRENCE arrays sorted by key (arrays or memory-mapped files).
        most: Largest number of occurrences of a part that is left alone.
    """
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
    r"""Returns the text without the lines or paragraphs of these numbers.

    >>> without("a\nb\nc", "line", {1})
    'a\nc'
    """
    return SEPARATORS[unit].join(piece for number, piece in enumerate(text.split(SEPARATORS[unit])) if number not in parts)


def _cut(shard: np.ndarray, key: int) -> int:
    return len(shard) if key >= 1 << 64 else int(np.searchsorted(shard["key"], np.uint64(key)))
