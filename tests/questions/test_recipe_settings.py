"""Every key of a recipe is listed once, under its full name, and a name selects exactly what it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.opened_recipe import open_session
from flows.pipeline import config_classes, pipeline, stage_of
from stages.questions.recipe_settings import TOP, TOP_SETTINGS, SettingsSection, find_settings, recipe_settings
from stages.questions.stage_description import describe
from stages.record.contract.errors import RecipeError
from stages.record.contract.recipe import load_recipe

STAGES = {node.name: stage_of(node) for node in pipeline()}
SECTIONS = recipe_settings(STAGES)


def keys(found: tuple[SettingsSection, ...]) -> list[str]:
    return [one.name for section in found for one in section.settings]


def test_every_section_of_a_recipe_is_there_once() -> None:
    names = [name for section in SECTIONS for name in (section.name, *section.alike)]
    assert names[:2] == [TOP, "runtime"] and sorted(names[2:]) == sorted(STAGES)
    assert all(section.about for section in SECTIONS)
    every = keys(SECTIONS)
    assert {f"runtime.{name}" for name in ("workers", "gpus")} <= set(every)
    choices = {"budget", "schedule", "optimizer", "loss"}  # classes of one choice may have a setting of the same name
    assert len(every) - len(set(every)) <= len(choices) * len(STAGES)
    for section in SECTIONS[2:]:
        assert keys((section,)) == [f"{section.name}.{one.name}" for one in describe(section.name, STAGES).settings]


def test_the_keys_at_the_top_are_those_that_a_recipe_may_have(tmp_path: Path) -> None:
    named = {one.name for one in TOP_SETTINGS}
    resolved = load_recipe("tiny", config_classes()).resolved()
    assert named - {"anchors"} == set(resolved) - set(STAGES) - {"runtime"}
    text = Path("configs/tiny.yaml").read_text(encoding="utf-8")
    given = [f"{name}: {{}}" for name in sorted(named) if f"\n{name}:" not in f"\n{text}"]
    (tmp_path / "r.yaml").write_text(text + "\n".join(given) + "\n")
    assert open_session(str(tmp_path / "r.yaml"), home=str(tmp_path)).recipe.name == "tiny"  # none of them is an unknown section
    assert all(one.about and one.type and one.default for one in TOP_SETTINGS)


@pytest.mark.parametrize(
    ("wanted", "section", "found"),
    [
        ("dedup.threshold", "dedup", ["dedup.threshold"]),
        (
            "pretrain.budget",
            "pretrain",
            [f"pretrain.budget{key}" for key in ("", ".steps", ".tokens", ".epochs", ".partial", ".flops")],
        ),
        ("evaluate@sft.chat", "evaluate@sft", ["evaluate@sft.chat"]),
        ("evaluate@base.chat", "evaluate@base", ["evaluate@base.chat"]),
        ("evaluate.chat", "evaluate@base", ["evaluate@base.chat"]),
        ("runtime.gpus", "runtime", ["runtime.gpus"]),
        ("seed", TOP, ["seed"]),
    ],
)
def test_a_key_selects_itself_and_the_keys_below_it(wanted: str, section: str, found: list[str]) -> None:
    (only,) = find_settings(STAGES, wanted)
    assert (only.name, keys((only,))) == (section, found)


def test_a_section_selects_all_of_its_keys() -> None:
    assert find_settings(STAGES, "") == SECTIONS
    assert find_settings(STAGES, TOP) == (SECTIONS[0],)
    (dedup,) = find_settings(STAGES, "dedup")
    assert dedup == next(section for section in SECTIONS if section.name == "dedup")
    (sft,), (all_models,) = find_settings(STAGES, "evaluate@sft"), find_settings(STAGES, "evaluate")
    assert all_models.alike == ("evaluate@sft", "evaluate@dpo") and sft.alike == ()
    assert [name.replace("@base", "@sft") for name in keys((all_models,))] == keys((sft,)) != []


@pytest.mark.parametrize(
    ("wanted", "what", "do"),
    [
        ("dedup.treshold", "There is no setting 'dedup.treshold'.", "Did you mean dedup.threshold?"),
        ("dedup.xyzzy", "There is no setting 'dedup.xyzzy'.", "`loam settings dedup` lists the settings."),
        ("evaluate@sft.chatt", "There is no setting 'evaluate@sft.chatt'.", "Did you mean evaluate@sft.chat?"),
        ("lr", "There is no section or setting 'lr'.", "Did you mean train_quality.learning_rate, pretrain.learning_rate, "),
        (
            "warmup",
            "There is no section or setting 'warmup'.",
            "Did you mean pretrain.warmup_steps, sft.warmup_steps or dpo.warmup_steps?",
        ),
        ("pretrian.budget", "There is no section or setting 'pretrian.budget'.", "Did you mean pretrain?"),
        ("xyzzy", "There is no section or setting 'xyzzy'.", "The sections are: recipe, runtime, "),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_the_nearest(wanted: str, what: str, do: str) -> None:
    with pytest.raises(RecipeError) as error:
        find_settings(STAGES, wanted)
    assert error.value.what == what and error.value.do.startswith(do)
