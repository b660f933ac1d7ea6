"""The learning rate over steps."""

from __future__ import annotations

import pytest

from stages.lm.train.schedule import Schedule
from stages.lm.train.schedule_cosine import Cosine
from stages.settings import is_deciding


def rate(step: int, peak: float, min_frac: float, warmup_steps: int, steps: int) -> float:
    return Cosine().rate(step, peak=peak, min_frac=min_frac, warmup_steps=warmup_steps, steps=steps)


def test_warm_up_peak_and_end() -> None:
    rates = [rate(step, 2.0, 0.1, 4, 20) for step in range(20)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[19] == pytest.approx(0.2)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_middle_of_the_cosine() -> None:
    assert rate(5, 1.0, 0.0, 0, 11) == pytest.approx(0.5)


def test_one_step_without_warm_up() -> None:
    assert rate(0, 1.0, 0.1, 0, 1) == 1.0


def test_after_the_last_step_the_rate_stays_at_its_end() -> None:
    assert [rate(step, 2.0, 0.1, 4, 20) for step in (19, 20, 30)] == pytest.approx([0.2, 0.2, 0.2])


def test_the_name_of_a_schedule_decides_the_weights() -> None:
    assert is_deciding(Schedule.model_fields["name"]) is True and rate(0, 1.0, 0.1, 2, 3) == 0.5
