"""Cuts the documents of a mixture into blocks of time, so that the copies of a repeated document are far apart.

The documents of a source and bucket are a stream: in the order of their hash, epoch after epoch, in the same order each time. A phase of the
curriculum takes the next tokens of each stream. Its time is cut into blocks, and each block gets an equal part of the tokens that the phase
takes of a stream. A block is packed on its own, and a training reads the blocks one after another (stages/training/data/order.py).

Guarantee: exact. Every stream gives exactly its tokens: whole epochs and the beginning of one more.
Two copies of a token of a stream with E tokens per epoch are E apart in the stream. No block holds more than E/4 of a stream that is
repeated, rounded up, so b <= (E + 3) / 4 tokens. A block that begins at s holds s to s + b - 1. If one copy is in the block that ends before
position p and the other in the block that begins at q, then q - p >= E - 2b + 1 >= (E - 1) / 2: at least half an epoch of the source is
trained between the two, whatever the order inside blocks. So they never share a block, and no sequence. Of a document, this holds for copies
of each of its tokens: two different parts of a document longer than 3/4 of its source's epoch may share a sequence.
Cost: one sort of the hashes of a stream that is not taken as a whole; 40 bytes per document of the stream.
Source: the distance is Loam's own; four epochs at most, Muennighoff et al. 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stages.corpus.text.hash_sampling import hash_order, hash_values, key_bytes
from stages.tokens.mix.spans import Spans

BLOCKS_PER_EPOCH = 4


@dataclass(frozen=True)
class Stream:
    """The documents of a source and bucket in the order in which they are taken.

    Attributes:
        documents: Their indexes, int64 [n].
        ends: Tokens of the stream up to the end of each document, int64 [n].
    """

    documents: np.ndarray
    ends: np.ndarray


def blocks_needed(phases: Sequence[Sequence[int]], available: Sequence[int]) -> list[int]:
    """Returns the number of blocks of each phase: one if no stream is repeated, else so many that none has more than 1/4 of an epoch.

    Args:
        phases: Tokens of each stream, for each phase.
        available: Tokens that each stream has.
    """
    repeated = [i for i, tokens in enumerate(available) if sum(phase[i] for phase in phases) > tokens]
    return [max([1, *(-(-BLOCKS_PER_EPOCH * phase[i] // available[i]) for i in repeated)]) for phase in phases]


def stream_of(spans: Spans, documents: np.ndarray, seed: int) -> Stream:
    """Returns the stream of documents, in the order of their hash. Arguments: all documents, the indexes of those to use, the seed."""
    order = documents[hash_order(hash_values(seed, "stream", key_bytes(spans.doc_id)[documents]))]
    return Stream(order, np.cumsum(spans.length[order]))


@dataclass(frozen=True)
class _Cut:
    """Consecutive documents of a stream, from token `low` of its epoch to token `high`.

    Attributes:
        stream: The stream.
        first: Place of the first document in the stream.
        stop: Place after the last document.
        low: First token, counted from the beginning of the epoch.
        high: Token after the last.
    """

    stream: Stream
    first: int
    stop: int
    low: int
    high: int


def _cuts(stream: Stream, begin: int, end: int) -> Iterator[_Cut]:
    """Yields what lies between token `begin` and token `end` of a stream, epoch after epoch."""
    epoch = int(stream.ends[-1]) if len(stream.ends) else 0
    while begin < end:
        base = begin // epoch * epoch
        low, high = begin - base, min(end - base, epoch)
        first, last = int(np.searchsorted(stream.ends, low, side="right")), int(np.searchsorted(stream.ends, high, side="left"))
        yield _Cut(stream, first, last + 1, low, high)
        begin = base + high


def cut_blocks(streams: Sequence[Stream], begins: Sequence[int], tokens: Sequence[int], blocks: int) -> Iterator[np.ndarray]:
    """Yields the slices of each block of a phase, int64 [n, 3], stream by stream.

    Args:
        streams: The streams.
        begins: Where the phase begins in each stream.
        tokens: Tokens that it takes of each stream.
        blocks: Number of blocks. The tokens of each stream are divided among them equally, to the token.
    """
    for block in range(blocks):
        cuts = [
            (begin + count * block // blocks, begin + count * (block + 1) // blocks) for begin, count in zip(begins, tokens, strict=True)
        ]
        yield _slices([one for stream, cut in zip(streams, cuts, strict=True) for one in _cuts(stream, *cut)])


def _slices(cuts: Sequence[_Cut]) -> np.ndarray:
    """Returns the slices (document, offset, length) of all cuts, int64 [n, 3]."""
    slices, at = np.empty((sum(one.stop - one.first for one in cuts), 3), np.int64), 0
    for one in cuts:
        ends, part = one.stream.ends[one.first : one.stop], slices[at : at + one.stop - one.first]
        part[:, 0], part[:, 1] = one.stream.documents[one.first : one.stop], 0
        part[0, 1] = one.low - (int(one.stream.ends[one.first - 1]) if one.first else 0)
        np.subtract(ends[1:], ends[:-1], out=part[1:, 2])
        part[0, 2] = ends[0] - one.low
        part[-1, 2] -= ends[-1] - one.high  # the last document may go on
        at += len(part)
    return slices
