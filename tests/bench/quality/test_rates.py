"""The best rate: of planted parabolas, beside numpy's own polynomial, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.quality.rates import BestRate, best_rate, changes, row

GRID = tuple(0.02 * 2 ** (power / 2) for power in range(6))


def found_of(found: BestRate | None) -> BestRate:
    assert found is not None
    return found


def test_a_planted_best_rate_is_found() -> None:
    found = found_of(best_rate({rate: 1.5 + 0.03 * np.log(rate / 0.05) ** 2 for rate in GRID}))
    assert found.rate == pytest.approx(0.05) and found.bits_per_byte == pytest.approx(1.5)
    assert found.ends == (pytest.approx(0.05, rel=1e-3), pytest.approx(0.05, rel=1e-3))


def test_the_lowest_point_and_its_interval_are_those_of_many_draws() -> None:
    draw, x = np.random.default_rng(1), np.log(np.array(GRID[:5]))
    within = []
    for _ in range(400):
        y = 1.5 + 0.05 * (x - np.log(0.04)) ** 2 + draw.normal(0, 0.001, len(x))
        found = found_of(best_rate(dict(zip(GRID[:5], y, strict=True))))
        a, b, _ = np.polyfit(x, y, 2)
        assert np.log(found.rate) == pytest.approx(-b / (2 * a), rel=1e-6)
        within.append(found.ends[0] <= 0.04 <= found.ends[1])
    assert 0.92 <= np.mean(within) <= 0.98


def test_rates_far_from_the_lowest_do_not_bend_the_parabola() -> None:
    far = {rate: 1.5 + 0.03 * np.log(rate / 0.04) ** 2 for rate in GRID} | {GRID[0] / 8: 9.0, GRID[-1] * 8: 9.0}
    assert found_of(best_rate(far)).rate == pytest.approx(0.04)


def test_a_best_rate_at_an_end_of_the_grid_is_not_believed() -> None:
    assert best_rate({rate: 1.5 + 0.03 * np.log(rate / 0.2) ** 2 for rate in GRID}) is None
    assert best_rate({rate: 1.5 + 0.03 * np.log(rate / GRID[-1]) ** 2 for rate in GRID}) is None
    assert best_rate({rate: 1.5 + 0.03 * np.log(rate / 0.01) ** 2 for rate in GRID}) is None
    assert best_rate({0.02: 1.6, 0.04: 1.5, 0.08: 1.6}) is None  # three rates fix a parabola and leave no error
    assert row(3, None, None)["best rate"] == "at an end of the grid"


def test_rates_of_two_depths_are_compared_with_both_errors() -> None:
    shown = row(1, BestRate(0.09, 0.3, 1.7), BestRate(0.06, 0.4, 1.6))
    assert shown["against the last depth"] == "1.50 (0.91 to 2.47)"  # 1.5 · exp(∓ 0.5)


def test_the_shapes_are_those_of_the_dial() -> None:
    assert [changes(depth, 0.02)["model.hidden_size"] for depth in (1, 2, 3, 4)] == [64, 128, 192, 256]
    assert changes(4, 0.02)["model.conv_layers"] == [0, 2] and changes(4, 0.02)["learning_rate"] == 0.02
