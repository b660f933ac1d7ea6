"""What each rank reads of a step: the slices of all ranks are the global batch of one rank, in order, however many ranks a resume has.

The oracle is tests/golden/oracle.py for the batches, and counting places one by one for their division.
"""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.data.order import Order
from stages.training.data.phases import BatchSize, phase_table
from stages.tokens.sequences.mixture import SequenceRange
from stages.training.data.reader import SequenceReader, padded_passes, write_sequence_files
from tests.golden import oracle

STEPS = 15
START = 3
WORLDS = st.tuples(st.sampled_from((1, 2, 3, 4)), st.integers(1, 2))
"""(ranks, micro-batch size)."""
BLOCKS = st.lists(st.integers(1, 20), min_size=1, max_size=4)
RAMP = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), max_size=2)
"""(steps, passes per step of both worlds together)."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> SequenceReader:
    """Sequences of one token, which is the number of the sequence."""
    items = [(np.array([number]), np.ones(1, np.uint8)) for number in range(1000)]
    return SequenceReader(write_sequence_files(tmp_path_factory.mktemp("numbers"), items, np.arange(1000), 4, 0))


@given(WORLDS, WORLDS, st.lists(BLOCKS, min_size=1, max_size=3), RAMP, st.integers(1, 3), st.integers(0, STEPS), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_slices_of_all_ranks_are_the_batches_of_one(
    reader: SequenceReader,
    before: tuple[int, int],
    after: tuple[int, int],
    blocks: list[list[int]],
    ramp: list[tuple[int, int]],
    passes: int,
    resume: int,
    seed: int,
) -> None:
    """Up to the step `resume` the ranks and micro-batches are those of `before`, then those of `after`.

    Catches: ranks that share a sequence or leave one out, blocks of ranks instead of passes, a division that depends on the steps before.
    """
    unit = math.lcm(math.prod(before), math.prod(after))
    largest = unit * max(passes, *(count for _, count in ramp), 1)
    blocks = [[*sizes, largest] for sizes in blocks]
    starts = np.cumsum([START, *map(sum, blocks)])[:-1].tolist()
    firsts = np.cumsum([0, *(steps for steps, _ in ramp)]).tolist()
    sizes = [BatchSize(first, unit * count) for first, count in zip(firsts, [*(count for _, count in ramp), passes], strict=True)]
    ranges = [SequenceRange(start, sum(own), 4, tuple(own)) for start, own in zip(starts, blocks, strict=True)]
    expected = islice(
        oracle.batches([(one.start_sequence, one.sequences) for one in ranges], unit * passes, seed,
                       [(steps, unit * count) for steps, count in ramp], blocks),
        STEPS,
    )  # fmt: skip
    for step, batch in enumerate(expected):
        order = Order(phase_table(ranges, sizes), seed)  # a new one, as after a resume
        ranks, micro = before if step < resume else after
        slices = [padded_passes(order.sequences_of_step(step), ranks, micro)[:, rank] for rank in range(ranks)]
        assert {one.shape for one in slices} == {(len(batch) // (ranks * micro), micro)}
        found = {(number * ranks + rank) * micro + slot: int(one[number, slot])
                 for rank, one in enumerate(slices) for number, slot in np.ndindex(one.shape)}  # fmt: skip
        assert [found[place] for place in range(len(batch))] == batch and len(set(batch)) == len(batch) == len(found)
        read = [reader.batch(one[number]).tokens[:, 0].tolist() for number in range(len(slices[0])) for one in slices]
        assert sum(read, []) == batch


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_padding_fills_the_last_pass_alone(count: int, ranks: int, size: int) -> None:
    """Of an evaluation, whose sequences need not be a multiple of a pass."""
    dealt = padded_passes(range(7, 7 + count), ranks, size)
    flat = dealt.reshape(-1).tolist()
    assert flat[:count] == list(range(7, 7 + count)) and set(flat[count:]) <= {-1} and len(flat) - count < ranks * size
    assert dealt.shape == (-(-count // (ranks * size)), ranks, size)
