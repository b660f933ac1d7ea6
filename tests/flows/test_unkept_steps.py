"""Steps that a training will not keep are refused when the recipe is opened, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.opened_recipe import open_session
from flows.unkept_steps import refuse_unkept
from stages.questions.kept_steps import kept_steps
from stages.record.contract.errors import RecipeError
from tests.made import milestones

EVERY = "pretrain.milestone_every_steps=200"


def refused(home: Path, *settings: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        open_session("tiny", settings, str(home))
    assert not list(home.rglob("*"))
    return caught.value


@pytest.mark.parametrize(
    ("settings", "what", "where", "do"),
    [
        (
            ["evaluate@base.milestones=true"],
            "evaluate@base.milestones asks for milestones of pretrain, which keeps none: pretrain.milestone_every_steps is 0.",
            "evaluate@base.milestones, pretrain.milestone_every_steps",
            "Remove evaluate@base.milestones, or change pretrain.milestone_every_steps.",
        ),
        (
            ["evaluate@base.milestones=true", "pretrain.milestone_every_steps=640"],
            "which keeps none: pretrain.milestone_every_steps is 640, and it trains 640 steps.",
            "evaluate@base.milestones, pretrain.milestone_every_steps",
            "",
        ),
        (
            ["evaluate@base.milestones=[200,300]", EVERY],
            "evaluate@base.milestones names the step 300, but pretrain keeps the checkpoints of the steps 200, 400, 600, 640.",
            "evaluate@base.milestones, pretrain.milestone_every_steps",
            "Name one of them, or change pretrain.milestone_every_steps.",
        ),
        (
            ["export@base.step=7", EVERY],
            "export@base.step names the step 7, but pretrain keeps the checkpoints of the steps 200, 400, 600, 640.",
            "export@base.step, pretrain.milestone_every_steps",
            "Name one of them",
        ),
        (
            ["export@base.step=7"],
            "export@base.step asks for milestones of pretrain, which keeps none: pretrain.milestone_every_steps is 0.",
            "export@base.step, pretrain.milestone_every_steps",
            "Remove export@base.step",
        ),
        (
            ["export@base.step=7", "pretrain.budget={tokens: 1310720}", EVERY],
            "but pretrain keeps the checkpoints of the steps 200, 400, 600, 640.",
            "export@base.step",
            "",
        ),
        (
            ["evaluate@sft.milestones=true", "sft.budget={epochs: 2}"],
            "which keeps none: sft.milestone_every_steps is 0.",
            "evaluate@sft.milestones, sft.milestone_every_steps",
            "",
        ),
    ],
)
def test_what_the_settings_show_is_refused(tmp_path: Path, settings: list[str], what: str, where: str, do: str) -> None:
    error = refused(tmp_path, *settings)
    assert what in error.what and where in error.where and do in error.do


def test_two_of_them_are_one_message(tmp_path: Path) -> None:
    error = refused(tmp_path, "export@base.step=7", "evaluate@dpo.milestones=true", EVERY)
    assert "export@base.step names the step 7" in error.what and "evaluate@dpo.milestones asks for milestones of dpo" in error.what


@pytest.mark.parametrize(
    "settings",
    [
        ["evaluate@base.milestones=true", EVERY],
        ["evaluate@base.milestones=[200, 640]", EVERY],
        ["evaluate@base.milestones=true", "pretrain.schedule={name: wsd}"],  # the last step before the decay always is a milestone
        ["export@base.step=512", "pretrain.schedule={name: wsd}"],
        ["export@base.step=640"],  # the last step needs no milestone
        ["evaluate@sft.milestones=true", "sft.milestone_every_steps=2", "sft.lora={rank: 4, alpha: 8}"],
        ["evaluate@sft.milestones=true", "export@sft.step=7", "sft.keep=best"],  # only the training tells its best step
        ["export@base.step=7", "pretrain.budget={epochs: 1}", EVERY],  # only the data tell; the stage refuses it
    ],
)
def test_what_is_kept_or_not_known_is_not_refused(tmp_path: Path, settings: list[str]) -> None:
    open_session("tiny", settings, str(tmp_path))


def test_the_steps_of_a_continued_run_are_its_own(tmp_path: Path) -> None:
    session = open_session("tiny", [EVERY], str(tmp_path))
    sections = dict(session.recipe.sections)
    assert kept_steps("pretrain", sections) == (200, 400, 600, 640) and kept_steps("pretrain", sections, before=400) == (600, 640)
    for name, known in (("pretrain-1@200", (400, 600, 640)), ("pretrain-1", None)):
        sections["pretrain"] = session.recipe.sections["pretrain"].model_copy(update={"continue_from": name})
        assert kept_steps("pretrain", sections) == known
    assert kept_steps("pretrain", sections, before=600) == (640,)


def test_an_imported_training_holds_what_it_holds_and_an_imported_export_has_no_curve(tmp_path: Path) -> None:
    session = open_session("tiny", ["evaluate@base.milestones=[4,6]", EVERY.replace("200", "2")], str(tmp_path))
    trained = milestones.trained(tmp_path / "made", 300)
    imported = {"pretrain": trained}
    with pytest.raises(RecipeError, match=r"names the step 6, but pretrain keeps the checkpoints of the steps 4, 8, 12\.") as caught:
        refuse_unkept(session.recipe, imported, session.left_out)
    assert caught.value.where.endswith("evaluate@base.milestones, import.pretrain")
    assert caught.value.do == "Name one of them, or import a training that kept others."
    bare = milestones.trained(tmp_path / "bare", 300, steps=(12,))
    with pytest.raises(RecipeError, match="which keeps none: import.pretrain holds none"):
        refuse_unkept(session.recipe, {"pretrain": bare}, session.left_out)
    with pytest.raises(
        RecipeError, match=r"evaluate@base.milestones scores the checkpoints of pretrain, but import.export@base is a model"
    ) as caught:
        refuse_unkept(session.recipe, {"export@base": trained}, session.left_out)
    assert caught.value.do == "Import pretrain in its place, or remove evaluate@base.milestones."
