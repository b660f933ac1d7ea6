"""The order of sequences: a permutation that is the same for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lm.data.order import Order, OrderError, Phase, permutation_keys, permute, sequence_at


@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_permute_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    images = permute(np.arange(size), size, permutation_keys(seed, 0, epoch))
    assert np.array_equal(np.sort(images), np.arange(size))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_a_pass_trains_no_sequence_twice_and_no_batch_crosses_a_phase(sizes: list[int], batch: int, seed: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    phases = tuple(Phase(int(start), size) for start, size in zip(starts, sizes, strict=False))
    if not any(size >= batch for size in sizes):
        with pytest.raises(OrderError, match="No phase holds one global batch"):
            Order(phases, seed, batch)
        return
    order = Order(phases, seed, batch)
    places = order.places(0, 2 * order.sequences_per_epoch)
    assert order.sequences_per_epoch + order.sequences_left_over == sum(sizes)
    for number in (0, 1):
        sequences = places.sequence[places.epoch == number]
        assert len(set(sequences.tolist())) == len(sequences) == order.sequences_per_epoch
    for phase, sequence in zip(places.phase, places.sequence, strict=True):
        assert phases[phase].start_sequence <= sequence < phases[phase].start_sequence + phases[phase].sequences
    assert all(len(set(block)) == 1 for block in places.phase.reshape(-1, batch).tolist())


@given(st.integers(0, 400), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_ranges_agree_with_single_positions(start: int, count: int) -> None:
    order = Order((Phase(0, 40), Phase(40, 33)), 3, 8)
    sequences = order.places(start, count).sequence.tolist()
    assert sequences == [sequence_at(p, order.phases, 3, 8) for p in range(start, start + count)]


def test_seed_phase_and_pass_change_the_order() -> None:
    first = Order((Phase(0, 1000),), 0, 10).places(0, 2000)
    other = Order((Phase(0, 1000),), 1, 10).places(0, 1000)
    assert not np.array_equal(first.sequence[:1000], first.sequence[1000:])
    assert not np.array_equal(first.sequence[:1000], other.sequence)


def test_the_order_looks_random() -> None:
    """Mean displacement and neighbours of a permutation of 10,000 are within five standard errors of a random permutation."""
    image = permute(np.arange(10_000), 10_000, permutation_keys(7, 0, 0))
    assert abs(np.corrcoef(np.arange(10_000), image)[0, 1]) < 5 / 100
    assert np.mean(np.diff(image) == 1) < 0.002


def test_the_order_never_changes() -> None:
    """Golden values: snapshots and step tables of earlier runs depend on them."""
    assert Order((Phase(0, 100),), 17, 10).places(0, 10).sequence.tolist() == GOLDEN


def test_positions_and_indices_outside_are_refused() -> None:
    with pytest.raises(OrderError, match="Positions start at 0"):
        Order((Phase(0, 10),), 0, 5).places(-1, 2)
    with pytest.raises(OrderError, match="outside the permutation of 10 sequences"):
        permute(np.array([10]), 10, permutation_keys(0, 0, 0))


GOLDEN = [14, 16, 24, 19, 34, 54, 32, 42, 28, 37]


def test_no_phase_is_no_batch() -> None:
    with pytest.raises(OrderError, match="the largest has 0 sequences, and global_batch_size is 4"):
        Order((), 1, 4)


def test_the_largest_of_several_phases_is_named() -> None:
    with pytest.raises(OrderError, match="the largest has 5 sequences, and global_batch_size is 8"):
        Order((Phase(0, 3), Phase(3, 5), Phase(8, 2)), 1, 8)
