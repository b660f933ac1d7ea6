"""Edited code is no hit: the key takes the version of a stage whose code the record lists, and the code's own digest otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.pipeline import pipeline, stage_of
from stages.core.contract import source_code
from stages.core.contract.recipe import validated
from stages.core.contract.runtime import Runtime
from stages.core.run.node_job import NodeJob, prepare
from stages.core.run.runner import find_cached
from stages.core.store import manifest
from stages.queries.plan import why_miss
from tests.conftest import run_stage
from tests.core.toys import WORDS

MODULE = "tests.core.toys"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[dict]]]:
    """A record that lists the toy's code as that of its version 1; tests add to it and change the code."""
    found = {"words": [{"version": 1, "code": source_code.code_digest(MODULE)[: source_code.DIGITS], "entry": "first version"}]}
    monkeypatch.setattr(source_code, "recorded", lambda: found)
    yield found


def job(home: Path) -> NodeJob:
    return prepare(home, "words", WORDS, validated(WORDS.config, {}, "test"), 7, Runtime(workers=1), {})


def edit(monkeypatch: pytest.MonkeyPatch, digest: str, modules: dict[str, str] | None = None) -> None:
    monkeypatch.setattr(source_code, "code_digest", lambda module: digest * 4)
    monkeypatch.setattr(source_code, "module_digests", lambda module: modules or {MODULE: digest})


def test_edited_code_is_a_miss_that_says_so_and_names_the_module(
    tmp_path: Path, record: dict[str, list[dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = run_stage(WORDS, {}, {}, tmp_path)
    assert built.manifest["key_parts"]["code"] == "" and find_cached(tmp_path, job(tmp_path)) is not None
    then = built.manifest["code"]["modules"]
    assert then == source_code.module_digests(MODULE) and {MODULE, "stages.core.tables.shards"} <= set(then)
    edit(monkeypatch, "e" * 16, then | {MODULE: "other", "stages.core.new": "x"})
    changed = job(tmp_path)
    assert changed.parts["code"] == "e" * 16 and find_cached(tmp_path, changed) is None
    assert why_miss(tmp_path, changed, "toy") == [f"code differs: not that of a recorded version (stages.core.new, {MODULE})"]


def test_code_that_gives_the_same_output_by_the_record_is_a_hit(
    tmp_path: Path, record: dict[str, list[dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage(WORDS, {}, {}, tmp_path)
    edit(monkeypatch, "e" * 16)
    record["words"].append({"version": 2, "code": "e" * 16, "entry": "of another version"})
    assert find_cached(tmp_path, job(tmp_path)) is None
    record["words"].append({"version": 1, "code": "e" * 16, "entry": "the same output: a faster loop"})
    assert find_cached(tmp_path, job(tmp_path)) is not None


def test_what_edited_code_built_is_no_hit_of_recorded_code(
    tmp_path: Path, record: dict[str, list[dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as edited:
        edit(edited, "e" * 16)
        run_stage(WORDS, {}, {}, tmp_path)
    again = job(tmp_path)
    assert find_cached(tmp_path, again) is None
    (line,) = why_miss(tmp_path, again, "toy")
    assert line.startswith("code differs: edited then, now that of a recorded version")


def test_scratch_is_of_one_code(tmp_path: Path, record: dict[str, list[dict]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that the record lists beside the old one has the same key, but does not go on in the other's scratch."""
    switch = tmp_path / "fail"
    switch.touch()
    monkeypatch.setenv("LOAM_TEST_FAIL", str(switch))
    with pytest.raises(RuntimeError, match="shard of gamma"):
        run_stage(WORDS, {"fail_at": "gamma"}, {}, tmp_path)
    (half,) = tmp_path.glob("scratch/*/work/words/00000/word.txt")
    half.write_text("of other code")
    switch.unlink()
    edit(monkeypatch, "e" * 16)
    record["words"].append({"version": 1, "code": "e" * 16, "entry": "the same output: a faster loop"})
    artifact = run_stage(WORDS, {"fail_at": "gamma"}, {}, tmp_path)
    assert half.parents[3].name == f"words-{artifact.manifest['key'][:12]}", "the key is the same"
    assert (artifact.path / "word" / "00000.txt").read_text() == "alpha"


@pytest.mark.parametrize("node", [node for node in pipeline() if "@" not in node.name], ids=lambda node: node.name)
def test_a_stage_reaches_nothing_that_only_asks_or_walks(node: object) -> None:
    reached = source_code.reached(stage_of(node).run.__module__)
    assert not [m for m in reached if m.split(".")[0] != "stages" or m.startswith("stages.queries")]


@pytest.mark.parametrize("stage", ["pretrain", "sft", "reference", "dpo"])
def test_what_the_ranks_run_is_reached_though_it_is_started_by_name(stage: str) -> None:
    assert {
        "stages.lm.ranks.rank",
        "stages.lm.train.trainer",
        "stages.lm.model.loss_dpo",
        "stages.lm.optimizers.optimizer_adamw",
        "stages.lm.schedules.schedule_cosine",
    } <= source_code.reached(f"stages.{stage}")


def test_sources_are_parsed_once_per_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget() -> None:
        for function in (source_code.code_digest, source_code.reached, source_code.imports_of, source_code._parsed, source_code._known):
            function.cache_clear()

    try:
        forget()
        with source_code.remembered(tmp_path):
            digest = source_code.code_digest(MODULE)
        assert len(json.loads((tmp_path / "code.json").read_text())) == len(source_code.reached(MODULE))
        forget()
        with monkeypatch.context() as patched:
            patched.setattr(source_code.ast, "parse", lambda source: pytest.fail("parsed again"))
            with source_code.remembered(tmp_path):
                assert source_code.code_digest(MODULE) == digest
            patched.setattr(source_code, "write_durably", lambda *_: pytest.fail("written without news"))
            with source_code.remembered(tmp_path):
                assert source_code.code_digest(MODULE) == digest
        for damaged in ("{ half", "[]", '{"x": 1}', "\xff"):
            forget()
            (tmp_path / "code.json").write_text(damaged, encoding="latin-1")
            with source_code.remembered(tmp_path):
                assert source_code.code_digest(MODULE) == digest
    finally:
        forget()


def test_the_record_that_ships_lists_lines(tmp_path: Path) -> None:
    names = {stage_of(node).name for node in pipeline()}
    assert set(source_code.recorded()) == names
    assert all(
        {"version", "code", "entry"} == set(line) and len(line["code"]) == source_code.DIGITS
        for lines in source_code.recorded().values()
        for line in lines
    )


def test_the_manifest_of_an_artifact_names_its_code(tmp_path: Path) -> None:
    artifact = manifest.read_artifact(run_stage(WORDS, {}, {}, tmp_path).path)
    assert artifact.manifest["key_parts"]["code"] == source_code.code_digest(MODULE)[: source_code.DIGITS], "toys are in no record"
