"""Blocks of time: every token as often as wanted, and the copies of a document far apart, by brute force."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tokens.mix import blocks
from stages.tokens.mix import spans as spans_module
from stages.tokens.mix.blocks import Stream, blocks_needed, cut_blocks, made_streams, slices_of
from stages.tokens.mix.spans import LENGTH, START, Spans
from stages.tokens.sequences.mixture import SequenceRange
from stages.training.data.order import Order
from stages.training.data.phases import BatchSize, phase_table
from tests.tokens.mix.test_spans import documents_of, pack_sequences, spans_of

Token = tuple[int, int]


def laid_out(stream: Stream, end: int) -> list[Token]:
    """The tokens (document, offset) of a stream, one by one."""
    sizes = np.diff(stream.ends, prepend=0).tolist()
    epoch = [(d, at) for d, size in zip(documents_of(stream.slices).tolist(), sizes, strict=True) for at in range(size)]
    return [epoch[i % len(epoch)] for i in range(end)]


def made(spans: Spans, owner: np.ndarray, hashed: bool, seed: int) -> list[Stream]:
    """Makes the streams in memory. owner: stream of each document, -1 for none."""
    sizes = np.bincount(owner[owner >= 0]).tolist()
    with tempfile.TemporaryDirectory() as folder:
        found = made_streams(spans, lambda block: owner[block], sizes, [hashed] * len(sizes), seed, Path(folder))
        return [Stream(np.array(one.slices), np.array(one.ends)) for one in found]


def tokens_of(slices: np.ndarray, spans: Spans) -> list[Token]:
    documents = documents_of(slices)
    offsets = slices[:, START] - spans.start[documents]
    return [
        (d, at)
        for d, offset, length in zip(documents.tolist(), offsets.tolist(), slices[:, LENGTH].tolist(), strict=True)
        for at in range(offset, offset + length)
    ]


def joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros((0, LENGTH + 1), np.int64), *parts])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 90), st.integers(0, 90), st.integers(1, 9))
def test_a_cut_has_the_tokens_of_the_stream_in_its_order(lengths: list[int], begin: int, more: int, block: int) -> None:
    spans = spans_of(lengths)
    stream = Stream(spans.slices(slice(None), np.zeros(len(lengths), np.int64)), np.cumsum(lengths))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "BLOCK", block)
        (cuts,) = cut_blocks([stream], [begin], [more], 1)
        cut = joined(slices_of(cuts))
        for tokens in (0, begin, sum(lengths)):
            within = stream.documents_within(min(tokens, sum(lengths)))
            assert within == len({d for d, _ in laid_out(stream, min(tokens, sum(lengths)))})
    assert tokens_of(cut, spans) == laid_out(stream, begin + more)[begin:] and (cut[:, LENGTH] > 0).all()


@pytest.mark.parametrize(("block", "in_range"), [(1 << 17, 1 << 18), (4, 2), (100, 3)])
@pytest.mark.parametrize("hashed", [True, False])
def test_streams_have_their_documents_in_the_order_of_their_hash_or_their_own(
    block: int, in_range: int, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many documents are read and sorted at a time. Every sixth document is in no stream."""
    monkeypatch.setattr(spans_module, "BLOCK", block)
    monkeypatch.setattr(blocks, "BLOCK", block)
    monkeypatch.setattr(blocks, "RANGE_DOCUMENTS", in_range)
    spans = spans_of([3, 5, 7] * 9)
    owner = np.array([2, 0, 1] * 9)
    owner[::6] = -1
    keys = list(map(bytes, spans.doc_id))
    for number, stream in enumerate(made(spans, owner, hashed, 4)):
        own = np.flatnonzero(owner == number).tolist()
        by_hash = sorted(own, key=lambda d: blake2b(keys[d], digest_size=8, key=b"4:stream").digest())
        assert documents_of(stream.slices).tolist() == (by_hash if hashed else own)
        assert stream.ends.tolist() == list(accumulate([[5, 7, 3][number]] * len(own)))
        assert set(stream.slices[:, 2].tolist()) == {number}


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


of_streams = st.lists(st.lists(st.integers(1, 6), min_size=5, max_size=30), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(of_streams, st.data())
def test_copies_are_half_an_epoch_apart_in_the_order_that_is_trained(lengths: list[list[int]], data: st.DataObject) -> None:
    """Packs streams of two phases, reads the sequences in the trained order, and counts the source's tokens between any two copies."""
    spans = spans_of([length for one in lengths for length in one])
    firsts = [0, *accumulate(len(one) for one in lengths)]
    streams = made(spans, np.repeat(np.arange(len(lengths)), [len(one) for one in lengths]), hashed=True, seed=3)
    available = [sum(one) for one in lengths]
    wanted = [[data.draw(st.integers(1, 2 * size)) for size in available] for _ in range(2)]
    counts, begins = blocks_needed(wanted, available), [[0] * len(streams), wanted[0]]
    sequences: list[list[Token]] = []
    ranges = []
    for tokens, begin, in_phase in zip(wanted, begins, counts, strict=True):
        sizes = []
        for cuts in cut_blocks(streams, begin, tokens, in_phase):
            document, segments, offsets = pack_sequences(joined(slices_of(cuts)), 8)
            inside = segments[:, 1] - spans.start[document]
            packed = [
                [(int(document[i]), at) for i in range(a, b) for at in range(inside[i], inside[i] + segments[i, 2])]
                for a, b in zip(offsets[:-1], offsets[1:], strict=True)
            ]
            sequences += packed
            sizes += [len(packed)] * bool(packed)
        ranges.append(SequenceRange(len(sequences) - sum(sizes), sum(sizes), 8, tuple(sizes)))
    assert Counter(token for one in sequences for token in one) == Counter(
        token for stream, *both in zip(streams, *wanted, strict=True) for token in laid_out(stream, sum(both))
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
