"""The common settings of all training stages."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stages.lm.train.training_settings import Budget
from tests.lm.made import training


def test_a_budget_in_steps() -> None:
    assert Budget(steps=7).in_steps(8, 100, 5) == 7
    assert Budget(tokens=1601).in_steps(8, 100, 5) == 3
    assert Budget(tokens=1601).in_steps(4, 100, 5, 1, 8) == 1 + 3, "one step of eight sequences before, then steps of four"
    assert Budget(epochs=2.5).in_steps(8, 100, 5) == 12
    assert Budget(epochs=0.01).in_steps(8, 100, 5) == 1


@pytest.mark.parametrize("given", [{}, {"steps": 1, "epochs": 1.0}])
def test_a_budget_has_one_unit(given: dict) -> None:
    with pytest.raises(ValidationError, match="budget needs exactly one of steps, tokens and epochs"):
        Budget(**given)


def test_warm_up_is_shorter_than_the_run() -> None:
    with pytest.raises(ValidationError, match="warmup_steps 5 is not below the 5 steps of the run"):
        training(budget=Budget(steps=5), warmup_steps=5, global_batch_size=1, learning_rate=1.0)
