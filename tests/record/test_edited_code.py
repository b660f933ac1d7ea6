"""Edited code is no hit in a clone. An installed release takes the version, and the plan says where other code built an artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.pipeline import Node, pipeline, stage_of
from stages.questions.plan import Planned, Step, make_plan, why_miss
from stages.record.contract import source_code
from stages.record.contract.recipe import load_recipe, validated
from stages.record.contract.runtime import Runtime
from stages.record.run.node_job import NodeJob, prepare
from stages.record.run.runner import find_cached
from stages.record.store import manifest
from tests.conftest import run_stage
from tests.record.toys import WORDS

MODULE = "tests.record.toys"


def job(home: Path) -> NodeJob:
    return prepare(home, "words", WORDS, validated(WORDS.config, {}, "test"), 7, Runtime(workers=1), {})


def edit(monkeypatch: pytest.MonkeyPatch, digest: str, modules: dict[str, str] | None = None) -> None:
    monkeypatch.setattr(source_code, "code_digest", lambda module: digest * 4)
    monkeypatch.setattr(source_code, "module_digests", lambda module: modules or {MODULE: digest})


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_code, "is_clone", lambda: False)


def test_edited_code_is_a_miss_that_says_so_and_names_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = run_stage(WORDS, {}, {}, tmp_path)
    assert built.manifest["key_parts"]["code"] == source_code.code_digest(MODULE)[: source_code.DIGITS]
    assert find_cached(tmp_path, job(tmp_path)) is not None
    then = built.manifest["code"]["modules"]
    assert then == source_code.module_digests(MODULE) and {MODULE, "stages.record.tables.shards"} <= set(then)
    edit(monkeypatch, "e" * 16, then | {MODULE: "other", "stages.record.new": "x"})
    changed = job(tmp_path)
    assert changed.parts["code"] == "e" * 16 and find_cached(tmp_path, changed) is None
    assert why_miss(tmp_path, changed, "toy") == [f"code differs (stages.record.new, {MODULE})"]


def planned(home: Path) -> Planned:
    (home / "t.yaml").write_text("name: toy\nseed: 7\nwords: {}\n")
    recipe = load_recipe(str(home / "t.yaml"), {"words": WORDS.config})
    (step,) = make_plan(home, recipe, [Step("words", {}, WORDS)]).steps
    return step


def test_a_release_takes_the_version_and_the_plan_names_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    built = run_stage(WORDS, {}, {}, tmp_path)
    assert built.manifest["key_parts"]["code"] == "" and built.manifest["code"]["stage"] == source_code.code_digest(MODULE)
    assert (planned(tmp_path).state, planned(tmp_path).why) == ("cached", ())
    edit(monkeypatch, "e" * 16, built.manifest["code"]["modules"] | {MODULE: "other"})
    assert (planned(tmp_path).state, planned(tmp_path).why) == ("cached", (f"built by other code ({MODULE})",))


def test_a_clone_does_not_take_what_a_release_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as release:
        install(release)
        run_stage(WORDS, {}, {}, tmp_path)
    again = job(tmp_path)
    assert find_cached(tmp_path, again) is None and why_miss(tmp_path, again, "toy") == ["code differs"]


def test_scratch_is_of_one_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases have the same key, but one does not go on in the scratch of the other."""
    install(monkeypatch)
    switch = tmp_path / "fail"
    switch.touch()
    monkeypatch.setenv("LOAM_TEST_FAIL", str(switch))
    with pytest.raises(RuntimeError, match="shard of gamma"):
        run_stage(WORDS, {"fail_at": "gamma"}, {}, tmp_path)
    (half,) = tmp_path.glob("scratch/*/work/words/00000/word.txt")
    half.write_text("of other code")
    switch.unlink()
    edit(monkeypatch, "e" * 16)
    artifact = run_stage(WORDS, {"fail_at": "gamma"}, {}, tmp_path)
    assert half.parents[3].name == f"words-{artifact.manifest['key'][:12]}", "the key is the same"
    assert (artifact.path / "word" / "00000.txt").read_text() == "alpha"


def test_an_artifact_of_an_older_key_format_is_named_as_one(tmp_path: Path) -> None:
    built = run_stage(WORDS, {}, {}, tmp_path)
    file = built.path / manifest.NAME
    file.write_text(file.read_text().replace('"format": 2,', ""))
    now = job(tmp_path)
    other = prepare(tmp_path, "words", WORDS, validated(WORDS.config, {"words": ["x"]}, "test"), 7, Runtime(workers=1), {})
    assert find_cached(tmp_path, now) is not None, "the folder's name is the key"
    assert why_miss(tmp_path, other, "toy") == ["built by an older key format"]


@pytest.mark.parametrize("node", [node for node in pipeline() if "@" not in node.name], ids=lambda node: node.name)
def test_a_stage_reaches_nothing_that_only_asks_or_walks(node: Node) -> None:
    reached = source_code.reached(stage_of(node).run.__module__)
    assert not [m for m in reached if m.split(".")[0] != "stages" or m.startswith("stages.questions")]


@pytest.mark.parametrize("stage", ["pretrain", "sft", "reference", "dpo"])
def test_what_the_ranks_run_is_reached_though_it_is_started_by_name(stage: str) -> None:
    assert {
        "stages.training.loop.rank",
        "stages.training.loop.training_loop",
        "stages.training.losses.loss_dpo",
        "stages.training.optimizers.optimizer_adamw",
        "stages.training.schedules.schedule_cosine",
    } <= source_code.reached(f"stages.training.{stage}")
