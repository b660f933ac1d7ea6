"""Hash samples: uniform, stable, and independent between purposes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.basics.hash_sampling import hash_value, hash_values, is_sampled, lowest


def test_hash_values_are_uniform_and_independent_between_purposes() -> None:
    keys = [str(i).encode() for i in range(20_000)]
    a, b = hash_values(1, "validation", keys), hash_values(1, "sample", keys)
    share = a < np.uint64(2**64 // 10)
    assert abs(share.mean() - 0.1) < 0.01
    assert abs(np.corrcoef(a.astype(float), b.astype(float))[0, 1]) < 0.03
    assert [is_sampled(1, "validation", key, 0.1) for key in keys[:500]] == share[:500].tolist()
    assert hash_value(1, "validation", "7") == hash_value(1, "validation", b"7") != hash_value(2, "validation", b"7")


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40, unique=False), st.integers(0, 400))
def test_lowest_takes_a_prefix_of_the_hash_values_within_the_limit(sizes: list[int], limit: int) -> None:
    numbers = hash_values(0, "x", [bytes([i]) for i in range(len(sizes))])
    chosen = lowest(numbers, np.array(sizes), limit)
    total = sum(s for s, c in zip(sizes, chosen, strict=True) if c)
    assert total <= limit or chosen.sum() == 1
    if not chosen.all():
        assert numbers[chosen].max() < numbers[~chosen].min()
        assert total + np.array(sizes)[~chosen][np.argmin(numbers[~chosen])] > limit
