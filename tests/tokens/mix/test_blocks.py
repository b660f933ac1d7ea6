"""Blocks of time: every token as often as wanted, and the copies of a document far apart, by brute force."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tokens.mix.blocks import Stream, blocks_needed, cut_blocks, stream_of
from stages.tokens.mix.spans import pack_sequences
from stages.tokens.sequences.mixture import SequenceRange
from stages.training.data.order import Order
from stages.training.data.phases import BatchSize, phase_table
from tests.tokens.mix.test_spans import spans_of

Token = tuple[int, int]


def laid_out(stream: Stream, end: int) -> list[Token]:
    """The tokens (document, offset) of a stream, one by one."""
    sizes = np.diff(stream.ends, prepend=0).tolist()
    epoch = [(d, at) for d, size in zip(stream.documents.tolist(), sizes, strict=True) for at in range(size)]
    return [epoch[i % len(epoch)] for i in range(end)]


def tokens_of(slices: np.ndarray) -> list[Token]:
    return [(d, at) for d, offset, length in slices.tolist() for at in range(offset, offset + length)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 90), st.integers(0, 90))
def test_a_cut_has_the_tokens_of_the_stream_in_its_order(lengths: list[int], begin: int, more: int) -> None:
    stream = Stream(np.arange(len(lengths)) * 3, np.cumsum(lengths))
    (cut,) = cut_blocks([stream], [begin], [more], 1)
    assert tokens_of(cut) == laid_out(stream, begin + more)[begin:] and (cut[:, 2] > 0).all()


def test_a_stream_has_the_documents_in_the_order_of_their_hash() -> None:
    spans, documents = spans_of([3, 5, 7] * 9), np.arange(2, 27, 3)
    keys = spans.doc_id.to_pylist()
    stream = stream_of(spans, documents, 4)
    assert stream.documents.tolist() == sorted(documents.tolist(), key=lambda d: blake2b(keys[d], digest_size=8, key=b"4:stream").digest())
    assert stream.ends.tolist() == list(accumulate([7] * 9))


@pytest.mark.parametrize(
    ("phases", "available", "expected"),
    [
        ([[10, 5]], [10, 20], [1]),
        ([[11, 5]], [10, 20], [5]),
        ([[40, 5]], [10, 20], [16]),
        ([[10, 10], [1, 5]], [10, 20], [4, 1]),  # repeated in the second phase, so the first is cut too
        ([[10, 10], [0, 10]], [10, 20], [1, 1]),
        ([[0, 30]], [0, 20], [6]),
    ],
)
def test_blocks_are_needed_where_a_stream_is_repeated(phases: list[list[int]], available: list[int], expected: list[int]) -> None:
    assert blocks_needed(phases, available) == expected


streams = st.lists(st.lists(st.integers(1, 6), min_size=5, max_size=30), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_copies_are_half_an_epoch_apart_in_the_order_that_is_trained(lengths: list[list[int]], data: st.DataObject) -> None:
    """Packs streams of two phases, reads the sequences in the trained order, and counts the source's tokens between any two copies."""
    spans = spans_of([length for one in lengths for length in one])
    firsts = [0, *accumulate(len(one) for one in lengths)]
    made = [stream_of(spans, np.arange(a, b), 3) for a, b in zip(firsts, firsts[1:], strict=False)]
    available = [sum(one) for one in lengths]
    wanted = [[data.draw(st.integers(1, 2 * size)) for size in available] for _ in range(2)]
    counts, begins = blocks_needed(wanted, available), [[0] * len(made), wanted[0]]
    sequences: list[list[Token]] = []
    ranges = []
    for tokens, begin, blocks in zip(wanted, begins, counts, strict=True):
        sizes = []
        for taken in cut_blocks(made, begin, tokens, blocks):
            document, segments, offsets = pack_sequences(spans, taken, 8)
            inside = segments[:, 1] - spans.start[document]
            packed = [
                [(int(document[i]), at) for i in range(a, b) for at in range(inside[i], inside[i] + segments[i, 2])]
                for a, b in zip(offsets[:-1], offsets[1:], strict=True)
            ]
            sequences += packed
            sizes += [len(packed)] * bool(packed)
        ranges.append(SequenceRange(len(sequences) - sum(sizes), sum(sizes), 8, tuple(sizes)))
    assert Counter(token for one in sequences for token in one) == Counter(
        token for stream, *both in zip(made, *wanted, strict=True) for token in laid_out(stream, sum(both))
    )
    order = Order(phase_table(ranges, [BatchSize(0, 1)]), data.draw(st.integers(0, 5)))
    trained = [token for s in order.places(0, len(sequences)).sequence.tolist() for token in sequences[s]]
    assert len(trained) == sum(map(sum, wanted))
    for number, (a, b) in enumerate(zip(firsts, firsts[1:], strict=False)):
        last: dict[Token, int] = {}
        own = [token for token in trained if a <= token[0] < b]
        for at, token in enumerate(own):
            assert at - last.get(token, -(10**9)) >= available[number] / 2
            last[token] = at
    for one in sequences:
        assert len(set(one)) == len(one)
