"""The best size at equal FLOPs: of planted profiles, and where no size is the best between others."""

from __future__ import annotations

import math

import pytest

from stages.queries.trials.isoflop import best_sizes, isoflop_chart, mean_losses
from stages.queries.trials.scaling_fit import MeasuredLoss

SIZES = [10**6 * 2**power for power in range(5)]


def profile(best: float, budget: float, seeds: int = 1) -> list[MeasuredLoss]:
    """A profile whose lowest point is at `best`; losses of the seeds of a size lie around its mean."""
    return [
        MeasuredLoss(size, round(budget / (6 * size)), 3 + 0.1 * math.log(size / best) ** 2 + 0.01 * (2 * seed - seeds + 1))
        for size in SIZES for seed in range(seeds)
    ]  # fmt: skip


def test_planted_best_sizes_are_found_with_their_tokens() -> None:
    found = best_sizes({1e14: profile(5e6, 1e14, seeds=2), 1e13: profile(3e6, 1e13)})
    assert [one.flops for one in found] == [1e13, 1e14] and [one.sizes for one in found] == [5, 5]
    for one, best in zip(found, (3e6, 5e6), strict=True):
        assert one.parameters is not None and one.parameters.value == pytest.approx(best, rel=1e-6)
        assert one.tokens == pytest.approx(one.flops / (6 * best), rel=1e-5) and one.loss == pytest.approx(3)


def test_a_size_at_an_end_is_no_best_size() -> None:
    (found,) = best_sizes({1e13: profile(1e5, 1e13)})
    assert found.parameters is None and found.tokens is None and found.loss is None and found.sizes == 5
    assert best_sizes({1e13: profile(2e6, 1e13)[:3]})[0].parameters is None, "three sizes fix a parabola and leave no error"


def test_seeds_of_a_size_are_one_mean_and_the_chart_has_a_line_per_budget() -> None:
    budgets = {1e13: profile(3e6, 1e13, seeds=3), 1e14: profile(5e6, 1e14)}
    assert mean_losses(budgets[1e13]) == pytest.approx(mean_losses(profile(3e6, 1e13)))
    chart = isoflop_chart("mine", budgets)
    assert chart.count("<polyline") == 2 and "1e+13 FLOPs" in chart and not isoflop_chart("mine", {})
