"""The benchmark of rates: how depths are compared, and what is trained."""

from __future__ import annotations

from flows.trials.sweep.isoflop import LowestPoint
from tests.bench.quality.rates import changes, row


def test_rates_of_two_depths_are_compared_with_both_errors() -> None:
    shown = row(1, LowestPoint(0.09, 0.3, 1.7), LowestPoint(0.06, 0.4, 1.6))
    assert shown["against the last depth"] == "1.50 (0.91 to 2.47)"  # 1.5 · exp(∓ 0.5)
    assert row(3, "the lowest is at an end", "the lowest is at an end")["best rate"] == "none: the lowest is at an end"


def test_the_shapes_are_those_of_the_dial() -> None:
    assert [changes(depth, 0.02, 16)["model.hidden_size"] for depth in (1, 2, 3, 4)] == [64, 128, 192, 256]
    assert changes(4, 0.02, 16)["model.conv_layers"] == [0, 2] and changes(4, 0.02, 16)["learning_rate"] == 0.02
    assert changes(4, 0.02, 16)["optimizer.momentum"] == 0.95, "that of the dial, and not the contestant's"
