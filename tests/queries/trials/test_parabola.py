"""The lowest point of a curve: of planted parabolas, beside numpy's own polynomial, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from stages.queries.trials.parabola import LowestPoint, lowest_point

GRID = tuple(0.02 * 2 ** (power / 2) for power in range(6))


def found_of(found: LowestPoint | None) -> LowestPoint:
    assert found is not None
    return found


def test_a_planted_lowest_point_is_found() -> None:
    found = found_of(lowest_point({rate: 1.5 + 0.03 * np.log(rate / 0.05) ** 2 for rate in GRID}))
    assert found.position == pytest.approx(0.05) and found.value == pytest.approx(1.5)
    assert found.ends == (pytest.approx(0.05, rel=1e-3), pytest.approx(0.05, rel=1e-3))


def test_the_lowest_point_and_its_interval_are_those_of_many_draws() -> None:
    draw, x = np.random.default_rng(1), np.log(np.array(GRID[:5]))
    within = []
    for _ in range(400):
        y = 1.5 + 0.05 * (x - np.log(0.04)) ** 2 + draw.normal(0, 0.001, len(x))
        found = found_of(lowest_point(dict(zip(GRID[:5], y, strict=True))))
        a, b, _ = np.polyfit(x, y, 2)
        assert np.log(found.position) == pytest.approx(-b / (2 * a), rel=1e-6)
        within.append(found.ends[0] <= 0.04 <= found.ends[1])
    assert 0.92 <= np.mean(within) <= 0.98


def test_measurements_far_from_the_lowest_do_not_bend_the_parabola() -> None:
    far = {rate: 1.5 + 0.03 * np.log(rate / 0.04) ** 2 for rate in GRID} | {GRID[0] / 8: 9.0, GRID[-1] * 8: 9.0}
    assert found_of(lowest_point(far)).position == pytest.approx(0.04)


def test_a_lowest_point_at_an_end_of_the_grid_is_not_believed() -> None:
    assert lowest_point({rate: 1.5 + 0.03 * np.log(rate / 0.2) ** 2 for rate in GRID}) is None
    assert lowest_point({rate: 1.5 + 0.03 * np.log(rate / GRID[-1]) ** 2 for rate in GRID}) is None
    assert lowest_point({rate: 1.5 + 0.03 * np.log(rate / 0.01) ** 2 for rate in GRID}) is None
    assert lowest_point({0.02: 1.6, 0.04: 1.5, 0.08: 1.6}) is None  # three measurements fix a parabola and leave no error
