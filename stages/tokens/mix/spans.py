"""Turns document spans into packed sequences, as arrays: reads them, holds documents out and packs slices of them.

Guarantee: exact. `pack_sequences` puts every token of its slices into exactly one sequence.
Cost: a few numpy operations over the spans: half a second and 130 MB per million documents to read them.
Source: best-fit packing with whole chunks kept, Ding et al. 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stages.corpus.text.hash_sampling import hash_values, key_bytes
from stages.corpus.text.native import compiled
from stages.tokens.mix.source_weights import apportion
from stages.tokens.sequences.packing import pack, stable_order

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Spans:
    """All documents of a tokens artifact, as arrays with one entry per document.

    Attributes:
        doc_id: Identities, fixed_size_binary[16].
        source: Index into `names`.
        names: Names of the sources, sorted.
        shard: Number of the shard with the document's tokens.
        start: First token in the shard.
        length: Number of tokens.
        bytes: Bytes of text.
    """

    doc_id: pa.Array  # fixed_size_binary[16]
    source: np.ndarray
    names: tuple[str, ...]
    shard: np.ndarray
    start: np.ndarray
    length: np.ndarray
    bytes: np.ndarray


def read_spans(files: Sequence[Path]) -> Spans:
    """Returns the span index of a tokens artifact, in the order of its shards."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pa.concat_tables([pq.read_table(path) for path in files])
    names = sorted(table.column("source").unique().to_pylist())
    source = pc.index_in(table.column("source"), pa.array(names, pa.string())).to_numpy().astype(np.int64)
    numbers = {name: table.column(name).to_numpy().astype(np.int64, copy=False) for name in ("shard", "start", "length", "bytes")}
    return Spans(table.column("doc_id").combine_chunks().storage, source, tuple(names), **numbers)


def select_validation(spans: Spans, share: float, at_most: int, seed: int) -> np.ndarray:
    """Returns which documents are held out, bool [documents]: of each source those with the lowest hash values.

    Their number is `share` of the documents of a source, but at least one if it has two. If that is more than `at_most` in all, every source
    that has two gives one, and the rest of `at_most` is divided in proportion to what each would give more. If `at_most` is below the number of
    such sources, those with the most documents give one each, and the others none. If no source has two documents, all count as one source.
    Duplicates need no rule here: of the documents that dedup found to be the same, one is left.
    """
    number = hash_values(seed, "validation", key_bytes(spans.doc_id))
    chosen = np.zeros(number.size, dtype=bool)
    source = spans.source
    sizes = np.bincount(source, minlength=len(spans.names)).tolist()
    if max(sizes, default=0) < 2:
        source, sizes = np.zeros_like(source), [number.size]
    wanted = [max(int(share * size), 1) if size > 1 else 0 for size in sizes]
    if sum(wanted) > at_most:
        wanted = _limited(wanted, sizes, at_most)
    order = stable_order(source, len(sizes)) if len(sizes) > 1 else np.arange(number.size)
    start = 0
    for size, lowest in zip(sizes, wanted, strict=True):
        documents = order[start : start + size]
        start += size
        if lowest:
            values = number[documents]
            limit = np.partition(values, lowest - 1)[lowest - 1]
            below, equal = documents[values < limit], documents[values == limit]
            chosen[below] = chosen[equal[: lowest - len(below)]] = True
    return chosen


def _limited(wanted: Sequence[int], sizes: Sequence[int], at_most: int) -> list[int]:
    """Returns numbers of documents that add up to `at_most`, which is less than `wanted`: first one of each source, then in proportion.

    Args:
        wanted: Documents that each source would give.
        sizes: Documents of each source.
        at_most: The sum.
    """
    giving = sorted((i for i, count in enumerate(wanted) if count), key=lambda i: (-sizes[i], i))[:at_most]
    found = [0] * len(wanted)
    for i in giving:
        found[i] = 1
    if len(giving) == at_most:
        return found
    more = apportion(at_most - len(giving), [max(count - 1, 0) for count in wanted])
    return [one + rest for one, rest in zip(found, more, strict=True)]


def pack_sequences(spans: Spans, taken: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Packs slices (document, offset, length) into sequences.

    A slice longer than seq_len fills whole sequences. Its remainder and all shorter slices are packed best-fit decreasing.

    Args:
        spans: All documents.
        taken: Slices, int64 [n, 3].
        seq_len: Tokens per sequence.

    Returns:
        (document int32 [n], segments [n, 3] of shard, start and length, offsets [sequences + 1] of each sequence's first segment).
    """
    length = np.empty(len(taken) + int(taken[:, 2].sum()) // seq_len, np.int64)  # at least as many as there are chunks
    length = length[: compiled(_cut_chunks)(taken, seq_len, length)]
    sequence = pack(length, seq_len).astype(np.int32)
    del length
    offsets = np.zeros(int(sequence.max(initial=-1)) + 2, np.int64)
    document, segments = np.empty(len(sequence), np.int32), np.empty((len(sequence), 3), np.int64)
    compiled(_place)(taken, seq_len, sequence, (spans.shard, spans.start), offsets, document, segments)
    return document, segments, offsets


def _cut_chunks(taken: np.ndarray, seq_len: int, length: np.ndarray) -> int:
    """Writes the tokens of each chunk of each slice: seq_len, and of the last one the rest.

    Args:
        taken: Slices (document, offset, length).
        seq_len: Tokens of a chunk of a longer slice.
        length: Takes the tokens.

    Returns:
        The number of chunks.
    """
    chunk = 0
    for slice_number in range(len(taken)):
        left = taken[slice_number, 2]
        while left > 0:
            length[chunk] = min(seq_len, left)
            left -= seq_len
            chunk += 1
    return chunk


def _place(
    taken: np.ndarray, seq_len: int, sequence: np.ndarray, places: tuple[np.ndarray, np.ndarray],
    offsets: np.ndarray, document: np.ndarray, segments: np.ndarray,
) -> None:  # fmt: skip
    """Writes the segments by sequence; within a sequence they are in the order of the slices. A counting sort: three passes over the slices.

    Args:
        taken: Slices (document, offset, length).
        seq_len: Tokens of a chunk of a longer slice.
        sequence: Sequence of each chunk.
        places: Shard of each document, and its first token there.
        offsets: Zeros, [sequences + 1]; becomes the first segment of each sequence.
        document: Becomes the document of each segment.
        segments: Become shard, start and length.
    """
    shards, starts = places
    sequences = len(offsets) - 1
    for chunk in range(len(sequence)):
        offsets[sequence[chunk] + 1] += 1
    for number in range(sequences):
        offsets[number + 1] += offsets[number]
    chunk = 0
    for slice_number in range(len(taken)):
        owner, done, tokens = taken[slice_number, 0], 0, taken[slice_number, 2]
        while done < tokens:
            at = offsets[sequence[chunk]]
            offsets[sequence[chunk]] += 1  # until the end of this pass: the place of the next segment
            document[at] = owner
            segments[at, 0] = shards[owner]
            segments[at, 1] = starts[owner] + taken[slice_number, 1] + done
            segments[at, 2] = min(seq_len, tokens - done)
            done += seq_len
            chunk += 1
    for number in range(sequences, 0, -1):
        offsets[number] = offsets[number - 1]
    offsets[0] = 0
