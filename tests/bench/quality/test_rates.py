"""The best rate: of planted parabolas, beside numpy's own polynomial, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.quality.rates import RATES, best_rate, changes


def test_a_planted_best_rate_is_found() -> None:
    found = best_rate({rate: 1.5 + 0.03 * np.log(rate / 0.025) ** 2 for rate in RATES})
    assert found.rate == pytest.approx(0.025) and found.bits_per_byte == pytest.approx(1.5) and found.inside
    assert found.high / found.low == pytest.approx(1, abs=1e-3)


def test_the_lowest_point_and_its_interval_are_those_of_many_draws() -> None:
    draw, x = np.random.default_rng(1), np.log(np.array(RATES))
    within = []
    for _ in range(400):
        y = 1.5 + 0.05 * (x - np.log(0.03)) ** 2 + draw.normal(0, 0.001, len(x))
        found = best_rate(dict(zip(RATES, y, strict=True)))
        a, b, _ = np.polyfit(x, y, 2)
        assert np.log(found.rate) == pytest.approx(-b / (2 * a), rel=1e-6)
        within.append(found.low <= 0.03 <= found.high)
    assert 0.92 <= np.mean(within) <= 0.98


def test_a_best_rate_outside_the_grid_is_not_believed() -> None:
    assert not best_rate({rate: 1.5 + 0.03 * np.log(rate / 0.2) ** 2 for rate in RATES}).inside
    assert not best_rate({rate: 1.5 - 0.03 * np.log(rate / 0.03) ** 2 for rate in RATES}).inside


def test_the_shapes_are_those_of_the_dial() -> None:
    assert [changes(depth, 0.02)["model.hidden_size"] for depth in (1, 2, 3, 4)] == [64, 128, 192, 256]
    assert changes(4, 0.02)["model.conv_layers"] == [0, 2] and changes(4, 0.02)["learning_rate"] == 0.02
