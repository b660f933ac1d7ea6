"""What counts as reached, at and beside the limit."""

from __future__ import annotations

from typing import Any

import pytest

from stages.report import quality_checks
from tests.stages.test_report import DPO, score


def checks(
    value: float = 0.5, bits: float = 1.0, unigram: float = 2.0, margins: tuple[float, float] = (0.0, 0.1), **gate: Any
) -> list[dict[str, Any]]:
    bare = {"chance": None, "stderr": 0.01}
    base = [
        score("validation", "bits_per_byte", bits, **bare),
        score("validation", "unigram_bits_per_byte", unigram, primary=False, **bare),
    ]
    sft = [score("docs_complete", "acc", value, **{"gate": True, "chance": 0.25, "stderr": 0.125, **gate})]
    dpo = DPO | {"validation_reward_margin_before": margins[0], "validation_reward_margin": margins[1]}
    return quality_checks({"base": base, "sft": sft, "dpo": []}, dpo)


@pytest.mark.parametrize(
    ("errors", "reached"),
    [(-3.5, False), (0.0, False), (2.0, False), (2.58, False), (2.61, False), (2.99, False), (3.0, False), (3.01, True), (9.0, True)],
)
def test_three_standard_errors_are_more_than_three(errors: float, reached: bool) -> None:
    found = checks(value=0.25 + 0.125 * errors)[1]
    assert "by more than three standard errors" in found["claim"] and found["must"]
    assert found["reached"] is reached
    assert f"{errors:.1f} standard errors above 0.25" in found["evidence"]


def test_the_distance_is_from_the_task_s_own_chance_in_its_own_errors() -> None:
    assert checks(value=0.75, chance=0.5, stderr=0.0625)[1]["reached"] is True  # four
    assert checks(value=0.75, chance=0.625, stderr=0.0625)[1]["reached"] is False  # two
    assert checks(value=0.75, chance=0.25, stderr=0.25)[1]["reached"] is False


def test_only_gates_with_an_error_are_checked() -> None:
    assert [len(checks(**change)) for change in ({}, {"gate": False}, {"stderr": None}, {"stderr": 0.0})] == [3, 2, 2, 2]


@pytest.mark.parametrize(("bits", "reached"), [(1.999, True), (2.0, False), (2.001, False)])
def test_the_base_model_is_below_the_unigram(bits: float, reached: bool) -> None:
    found = checks(bits=bits)[0]
    assert found["must"] and found["reached"] is reached and "unigram model in bits per byte" in found["claim"]


@pytest.mark.parametrize(("margins", "reached"), [((0.0, 0.1), True), ((0.1, 0.1), False), ((0.2, 0.1), False), ((-0.2, -0.1), True)])
def test_dpo_raises_the_margin_from_where_it_was(margins: tuple[float, float], reached: bool) -> None:
    assert checks(margins=margins)[-1]["reached"] is reached


def test_without_preferences_there_is_no_such_check() -> None:
    bare = {"chance": None, "stderr": 0.01}
    assert quality_checks({"base": [score("validation", "bits_per_byte", 1.0, **bare)], "sft": [], "dpo": []}, {}) == []
