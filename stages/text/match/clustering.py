"""Which documents to remove as duplicates, and of which kept one.

Documents are decided in the order given. One is removed only with a verified edge to a kept one: equal text, or exact Jaccard at
or above the threshold (an LSH bucket only proposes). So a document is removed only if it is similar to a kept one; similarity is not transitive,
and the result follows from order, texts and parameters alone. A document is compared with the kept documents of its buckets
only: the greedy rule needs no other pair, and a bucket of a million copies costs a million comparisons, not half their square.
Guarantee: equal to comparing every pair that shares a bucket. Cost: grouping holds one band in memory, about 40 bytes per
document (its keys are sorted in shares above 16 M documents); the buckets of all bands lie in a file of 4 bytes per document and
band, which deciding reads in order beside about 40 bytes per document. Source: Leskovec, Rajaraman, Ullman, Mining of Massive Datasets,
3.4 (banding). Removal without verification took 52-64 % wrongly where it was measured (Marin issue 7591).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stages.text.basics.native import compiled

SHARE = 1 << 24  # documents whose keys are sorted at a time
BLOCK = 1 << 16  # documents decided at a time
NOBODY = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Edges:
    """Some verified edges: `later` is removed or would be, `earlier` stays; jaccard at or above the threshold."""

    later: np.ndarray  # uint32 [pairs]
    earlier: np.ndarray  # uint32 [pairs]
    jaccard: np.ndarray  # float64 [pairs]


@dataclass(frozen=True)
class Verdicts:
    """What became of each document: kept_by is itself where it stays. jaccard: to the kept one, 1 for equal texts."""

    kept_by: np.ndarray  # uint32 [documents]
    jaccard: np.ndarray  # float64 [documents]
    counts: np.ndarray  # int64 [3]: pairs that shared a bucket, pairs compared (sizes allow the threshold), pairs at or above it

    @property
    def stays(self) -> np.ndarray:
        return self.kept_by == np.arange(len(self.kept_by), dtype=np.uint32)


def first_copies(hashes: np.ndarray) -> np.ndarray:
    """uint32 [documents]: the first document with the same 16-byte hash (itself where there is none before it)."""
    halves = np.ascontiguousarray(hashes).view(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0])).astype(np.uint32)  # stable: copies stand in canonical order
    new = np.ones(len(order), bool)
    new[1:] = (halves[order[1:]] != halves[order[:-1]]).any(axis=1)
    first = np.empty(len(order), np.uint32)
    first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    return first


def group_bands(keys_of: Callable[[int], np.ndarray], eligible: np.ndarray, known: int, buckets: np.ndarray) -> int:
    """Numbers the buckets of every band that hold two documents or more, one of them not among the first `known`.

    keys_of(band): uint64 [documents]. eligible: bool [documents]. buckets: uint32 [bands, documents], filled with the number of
    each document's bucket, 0 for none (an array or a memory-mapped file). Returns the number of buckets.
    """
    total = 0
    chosen = np.flatnonzero(eligible)
    shares = max(1, -(-len(chosen) // SHARE))
    shift = np.uint64(64 - max(1, (shares - 1).bit_length()))
    for band in range(len(buckets)):
        keys = keys_of(band)[chosen]
        row = np.zeros(buckets.shape[1], np.uint32)
        for share in range(1 << (shares - 1).bit_length()):
            mine = np.flatnonzero(keys >> shift == np.uint64(share)) if shares > 1 else np.arange(len(keys))
            order = mine[np.argsort(keys[mine])]
            total = compiled(_number_buckets)(keys, order, chosen, known, row, total)
        buckets[band] = row
        release(buckets)
    return total


def in_buckets(buckets: np.ndarray) -> np.ndarray:
    """bool [documents]: who shares a bucket, so that its shingle set is needed."""
    found = np.zeros(buckets.shape[1], bool)
    for band in buckets:
        found |= band != 0
    return found


def decide(
    buckets: np.ndarray,
    total: int,
    first: np.ndarray,
    known: int,
    sets: np.ndarray,
    offsets: np.ndarray,
    threshold: float,
    verdicts: Verdicts,
    progress: Callable[[int], None],
) -> Iterator[Edges]:
    """Decides the documents from number `known` on and fills `verdicts` (see `undecided`); yields the verified edges.

    buckets, total: from `group_bands`; its numbers are overwritten. first: from `first_copies`. sets, offsets: uint64 [shingles] and
    int64 [documents + 1], the sorted shingle sets of all documents that share a bucket, empty for the others.
    """
    heads = np.full(total + 1, NOBODY, np.uint32)
    seen = np.full(len(first), NOBODY, np.uint32)
    room, done = BLOCK, 0
    while done < len(first):
        later, earlier, similarity = np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.float64)
        stop = min(len(first), done + BLOCK)
        reached, edges = compiled(_decide)(buckets, heads, seen, first, known, sets, offsets, threshold, verdicts.kept_by, verdicts.jaccard,
                                           verdicts.counts, later, earlier, similarity, done, stop)  # fmt: skip
        yield Edges(later[:edges].copy(), earlier[:edges].copy(), similarity[:edges].copy())
        if reached < stop:  # the buffer was full: that document again, with more room
            seen[seen == reached] = NOBODY
            room *= 2
        done = reached
        release(sets)
        progress(done)


def release(array: np.ndarray) -> None:
    """Gives the memory of a memory-mapped file back to the page cache, so that what was read does not count as this process's."""
    if isinstance(array, np.memmap):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def undecided(count: int) -> Verdicts:
    """Verdicts by which every document stays."""
    return Verdicts(np.arange(count, dtype=np.uint32), np.ones(count), np.zeros(3, np.int64))


def copy_sets(values: np.ndarray, starts: np.ndarray, numbers: np.ndarray, sets: np.ndarray, offsets: np.ndarray) -> None:
    """Puts the shingle sets of a shard's documents at their place: set i, values[starts[i]:starts[i + 1]], to offsets[numbers[i]]."""
    compiled(_copy_sets)(values, starts, numbers, sets, offsets)


def _number_buckets(keys, order, chosen, known, row, total):  # type: ignore[no-untyped-def]
    """Kernel. Equal keys in a row of `order` are a bucket; returns the highest number given."""
    at = 0
    while at < len(order):
        end = at + 1
        while end < len(order) and keys[order[end]] == keys[order[at]]:
            end += 1
        if end - at > 1:
            fresh = False
            for k in range(at, end):
                fresh = fresh or chosen[order[k]] >= known
            if fresh:
                total += 1
                for k in range(at, end):
                    row[chosen[order[k]]] = total
        at = end
    return total


def _decide(  # type: ignore[no-untyped-def]
    buckets, heads, seen, first, known, sets, offsets, threshold, kept_by, jaccards, counts, later, earlier, similarity, start, stop
):
    """Kernel. Decides documents start..stop; returns (the first one not decided, edges). It stops early when the edges of a document
    do not fit. The kept documents of a bucket are a chain: heads[bucket] is the newest, and a kept document's entry in `buckets`
    names the one before it.
    """
    nobody = np.uint32(0xFFFFFFFF)
    edges = 0
    for number in range(start, stop):
        this = np.uint32(number)
        if first[number] != this:
            kept_by[number] = kept_by[first[number]]
            jaccards[number] = jaccards[first[number]]
            continue
        best, best_of, shared, compared, found = 0.0, nobody, 0, 0, 0
        if number >= known:
            own = offsets[number + 1] - offsets[number]
            for band in range(buckets.shape[0]):
                bucket = buckets[band, number]
                other = heads[bucket] if bucket else nobody
                while other != nobody:
                    if seen[other] != this:
                        seen[other] = this
                        shared += 1
                        size = offsets[other + 1] - offsets[other]
                        if min(own, size) / max(own, size) >= threshold:  # else no overlap can reach it
                            compared += 1
                            a, b = offsets[number], offsets[other]
                            a_end, b_end = a + own, b + size
                            needed = threshold / (1.0 + threshold) * (own + size) - 1e-6
                            common = 0
                            while a < a_end and b < b_end and common + min(a_end - a, b_end - b) >= needed:
                                for _ in range(64):
                                    if a < a_end and b < b_end:
                                        x, y = sets[a], sets[b]
                                        common += x == y
                                        a += x <= y
                                        b += y <= x
                            value = common / (own + size - common)
                            if (a == a_end or b == b_end) and value >= threshold:
                                if edges + found == len(later):
                                    return number, edges
                                later[edges + found], earlier[edges + found], similarity[edges + found] = this, other, value
                                found += 1
                                if value > best or (value == best and other < best_of):
                                    best, best_of = value, other
                    other = buckets[band, other]
        edges += found
        counts[0] += shared
        counts[1] += compared
        counts[2] += found
        if best_of != nobody:
            kept_by[number], jaccards[number] = best_of, best
        else:
            for band in range(buckets.shape[0]):
                bucket = buckets[band, number]
                if bucket:
                    buckets[band, number] = heads[bucket]
                    heads[bucket] = this
    return stop, edges


def _copy_sets(values, starts, numbers, sets, offsets):  # type: ignore[no-untyped-def]
    """Kernel."""
    for i in range(len(numbers)):
        out = offsets[numbers[i]]
        for k in range(starts[i + 1] - starts[i]):
            sets[out + k] = values[starts[i] + k]
