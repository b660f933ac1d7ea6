"""The order of sequences: a permutation that is the same for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.training.data.order import Order, permutation_keys, permute
from stages.training.data.phases import BatchSize, OrderError, phase_table
from stages.tokens.sequences.mixture import SequenceRange


def order_of(*sizes: int, batch: int, seed: int = 1) -> Order:
    """Returns the order over ranges of these sizes, one behind the other."""
    starts = np.cumsum([0, *sizes]).tolist()
    ranges = [SequenceRange(start, size, 16) for start, size in zip(starts, sizes, strict=False)]
    return Order(phase_table(ranges, [BatchSize(0, batch)]), seed)


@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_permute_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    images = permute(np.arange(size), size, permutation_keys(seed, 0, epoch))
    assert np.array_equal(np.sort(images), np.arange(size))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_an_epoch_trains_no_sequence_twice_and_no_batch_crosses_a_phase(sizes: list[int], batch: int, seed: int) -> None:
    if min(sizes) < batch:
        with pytest.raises(OrderError, match="less than one global batch"):
            order_of(*sizes, batch=batch, seed=seed)
        return
    order = order_of(*sizes, batch=batch, seed=seed)
    places = order.places(0, 2 * order.sequences_per_epoch)
    assert order.sequences_per_epoch + order.sequences_left_over == sum(sizes)
    for place in {(int(phase), int(epoch)) for phase, epoch in zip(places.phase, places.epoch, strict=True)}:
        sequences = places.sequence[(places.phase == place[0]) & (places.epoch == place[1])]
        assert len(set(sequences.tolist())) == len(sequences)
    for phase, sequence in zip(places.phase, places.sequence, strict=True):
        assert order.phases[phase].start_sequence <= sequence < order.phases[phase].start_sequence + order.phases[phase].sequences
    assert all(len(set(block)) == 1 for block in places.phase.reshape(-1, batch).tolist())


@given(st.integers(0, 400), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_ranges_agree_with_single_positions(start: int, count: int) -> None:
    order = order_of(40, 33, batch=8, seed=3)
    sequences = order.places(start, count).sequence.tolist()
    assert sequences == [int(order.places(position, 1).sequence[0]) for position in range(start, start + count)]


def test_seed_and_epoch_change_the_order() -> None:
    first = order_of(1000, batch=10, seed=0).places(0, 2000)
    other = order_of(1000, batch=10, seed=1).places(0, 1000)
    assert not np.array_equal(first.sequence[:1000], first.sequence[1000:])
    assert not np.array_equal(first.sequence[:1000], other.sequence)


def test_ranges_of_the_same_size_have_different_orders() -> None:
    places = order_of(1000, 1000, batch=10).places(0, 2000)
    assert not np.array_equal(places.sequence[:1000], places.sequence[1000:] - 1000)


@pytest.mark.parametrize(("steps", "readings"), [(0, 1), (1, 1), (7, 1), (11, 1), (12, 2), (15, 2), (16, 3), (18, 3)])
def test_how_often_the_last_range_is_read(steps: int, readings: int) -> None:
    """Ranges of 7 and 4 full batches; in the first, nothing is repeated."""
    assert order_of(30, 17, batch=4).readings(steps) == readings


def test_the_order_looks_random() -> None:
    """Mean displacement and neighbours of a permutation of 10,000 are within five standard errors of a random permutation."""
    image = permute(np.arange(10_000), 10_000, permutation_keys(7, 0, 0))
    assert abs(np.corrcoef(np.arange(10_000), image)[0, 1]) < 5 / 100
    assert np.mean(np.diff(image) == 1) < 0.002


def test_the_order_never_changes() -> None:
    """Golden values: snapshots and step tables of earlier runs depend on them."""
    assert order_of(100, batch=10, seed=17).places(0, 10).sequence.tolist() == GOLDEN


def test_positions_and_indices_outside_are_refused() -> None:
    with pytest.raises(OrderError, match="Positions start at 0"):
        order_of(10, batch=5).places(-1, 2)
    with pytest.raises(OrderError, match="outside the permutation of 10 sequences"):
        permute(np.array([10]), 10, permutation_keys(0, 0, 0))


GOLDEN = [14, 16, 24, 19, 34, 54, 32, 42, 28, 37]


@pytest.mark.parametrize(
    ("sizes", "ramp", "once"),
    [
        ((12, 9), [BatchSize(0, 4)], 5),  # three steps and two
        ((12, 8), [BatchSize(0, 2), BatchSize(1, 4)], 5),  # 2 + 4 + 4, and 4 + 4
        ((4, 4, 7), [BatchSize(0, 4), BatchSize(3, 2)], 4),  # 4, 4, and 4 + 2
    ],
)
def test_a_second_reading_of_several_ranges_is_refused(sizes: tuple[int, ...], ramp: list[BatchSize], once: int) -> None:
    starts = np.cumsum([0, *sizes]).tolist()
    order = Order(phase_table([SequenceRange(start, size, 16) for start, size in zip(starts, sizes, strict=False)], ramp), 1)
    order.refuse_another_reading(once)
    for steps in (once + 1, once + 50):
        with pytest.raises(OrderError, match=f"The budget of {steps} steps reads the last of the {len(sizes)} ranges .* after step {once}:"):
            order.refuse_another_reading(steps)
    order_of(12, batch=4).refuse_another_reading(500)
