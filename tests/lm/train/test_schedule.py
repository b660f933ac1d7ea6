"""The learning rate over steps."""

from __future__ import annotations

import pytest

from stages.lm.train.schedule import Schedule


def test_warm_up_peak_and_end() -> None:
    schedule = Schedule(peak=2.0, min_frac=0.1, warmup_steps=4, steps=20)
    assert [schedule.rate(step) for step in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert schedule.rate(19) == pytest.approx(0.2)
    rates = [schedule.rate(step) for step in range(4, 20)]
    assert rates == sorted(rates, reverse=True)


def test_middle_of_the_cosine() -> None:
    assert Schedule(1.0, 0.0, 0, 11).rate(5) == pytest.approx(0.5)


def test_one_step_without_warm_up() -> None:
    assert Schedule(1.0, 0.1, 0, 1).rate(0) == 1.0
