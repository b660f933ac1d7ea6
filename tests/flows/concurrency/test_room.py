"""What a node needs: cores by its declaration, memory by an earlier build or a guess on the safe side, GPUs only where it computes on those of this machine."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.concurrency import room
from flows.concurrency.room import Need, Room, need_of, room_of
from flows.concurrency.simulated import groups
from flows.opened_recipe import open_session
from flows.pipeline import pipeline, stage_of
from stages.questions.training_size import model_shape, rank_memory_bytes
from stages.record.contract.declaration import Artifact
from stages.record.contract.environment import hardware
from tests.conftest import PROJECT

DATA = ("filter", "dedup", "encode", "train_tokenizer")


def needs(tmp_path: Path, *settings: str, artifacts: dict[str, Artifact] | None = None, **expected: float) -> dict[str, Need]:
    session = replace(open_session("tiny", settings, str(tmp_path / "home")), expected_bytes=expected)
    return {step.node: need_of(session, step, artifacts or {}) for step in session.steps()}


def test_cores_are_what_a_stage_computes_on_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(room, "hardware", lambda: {**hardware(), "cores": 12})
    cores = {
        node: need.cores for node, need in needs(tmp_path, "runtime.workers=5", "runtime.cpu_ranks=4", "runtime.micro_batch_size=1").items()
    }
    assert {cores[node] for node in DATA} == {5} and {cores[node] for node in ("pretrain", "sft", "reference", "dpo")} == {4}
    assert {cores[node] for node in ("crawl", "benchmarks", "conversations", "mix", "export@base", "report")} == {1}
    assert cores["evaluate@sft"] == 12, "torch takes a thread per core"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert needs(tmp_path)["evaluate@sft"].cores == 2


@pytest.mark.parametrize(
    ("settings", "cores", "gpus"),
    [
        (
            {"gpus": 4},
            {"sft": 4, "evaluate@base": 1},
            {"pretrain", "sft", "reference", "dpo", "evaluate@base", "evaluate@sft", "evaluate@dpo"},
        ),
        ({"gpus": 4, "launcher": "slurm", "nodes": 2}, {"sft": 1, "evaluate@base": 1, "export@sft": 1}, set()),
        (
            {"launcher": "hosts", "hosts": {"names": ["a"]}},
            {"sft": 1, "evaluate@base": 1},
            {f"{stage}@{model}" for stage in ("export", "evaluate") for model in ("base", "sft", "dpo")}
            | {"pretrain", "sft", "reference", "dpo"},
        ),
        ({"launcher": "slurm", "cpu_ranks": 8}, {"sft": 1, "dpo": 1}, set()),
        ({"engine": "slurm", "workers": 9}, {"dedup": 1, "filter": 1, "crawl": 1}, set()),
        ({"engine": "ray", "workers": 9}, {"dedup": 9}, set()),
        ({"engine": "ray", "ray": {"address": "a:1"}, "workers": 9}, {"dedup": 1}, set()),
    ],
)
def test_what_runs_elsewhere_takes_one_core_and_no_gpu_here(
    settings: dict[str, Any], cores: dict[str, int], gpus: set[str], tmp_path: Path
) -> None:
    """Of settings that a machine without Slurm and Ray would refuse."""
    session = open_session("tiny", [], str(tmp_path / "home"))
    runtime = type(session.recipe.runtime).model_validate({**session.recipe.runtime.model_dump(), **settings})
    session = replace(session, recipe=replace(session.recipe, runtime=runtime))
    checkpoint = Artifact(tmp_path, {"kind": "checkpoint", "bytes": 7e12})  # type: ignore[typeddict-item]
    found = {step.node: need_of(session, step, {"pretrain": checkpoint}) for step in session.steps()}
    assert {node: found[node].cores for node in cores} == cores
    for node in ("sft", "export@sft", "evaluate@sft"):
        assert runtime.launcher == "local" or found[node].memory_bytes == 2e9, "the driver does not read the checkpoint"
    assert {node for node, need in found.items() if need.gpus} == gpus


def test_memory_is_that_of_an_earlier_build_else_two_gigabytes_a_core_and_twice_the_models(tmp_path: Path) -> None:
    checkpoint = Artifact(tmp_path, {"kind": "checkpoint", "bytes": 7e9})  # type: ignore[typeddict-item]
    tokenizer = Artifact(tmp_path, {"kind": "tokenizer", "bytes": 5e9})  # type: ignore[typeddict-item]
    found = needs(tmp_path, artifacts={"sft": checkpoint, "train_tokenizer": tokenizer}, dedup=3e9)
    assert found["dedup"].memory_bytes == 3e9 and found["filter"].memory_bytes == 2 * 2e9
    assert found["export@sft"].memory_bytes == 2e9 + 2 * 7e9


def test_the_memory_of_a_training_is_that_of_its_ranks_and_all_where_that_is_not_known(tmp_path: Path) -> None:
    session = open_session("tiny", ["runtime.cpu_ranks=4", "runtime.micro_batch_size=1"], str(tmp_path / "home"))
    shape, config = model_shape(session.recipe, {}, session.off), session.recipe.sections["sft"]
    assert shape is not None
    (sft,) = (step for step in session.steps() if step.node == "sft")
    assert need_of(session, sft, {}).memory_bytes == 4 * 2e9 + 4 * rank_memory_bytes(session.recipe.runtime, config, shape)  # type: ignore[arg-type]
    (reference,) = (step for step in session.steps() if step.node == "reference")
    assert need_of(session, reference, {}).memory_bytes == float("inf"), "its settings do not say what it takes"
    assert not Room(4, 64, 1e15).holds([Need(1, 1), need_of(session, reference, {})])


def test_the_room_is_what_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "hardware", lambda: {**hardware(), "cores": 12})
    monkeypatch.setattr("stages.training.run.training_run.limit_bytes", lambda: 5 << 30)
    session = open_session("tiny", ["runtime.nodes_at_once=3"], str(tmp_path / "home"))
    assert room_of(session.recipe.runtime) == Room(3, 12, 5 << 30)
    default = open_session("tiny", [], str(tmp_path / "home")).recipe.runtime
    assert room_of(default).nodes == 4
    monkeypatch.setattr(room, "hardware", lambda: {**hardware(), "cores": 7})
    assert room_of(default) == Room(1, 7, 5 << 30)


def test_of_the_machine_with_two_cores_only_nodes_of_one_core_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(room, "hardware", lambda: {**hardware(), "cores": 2})
    found, machine = needs(tmp_path), Room(4, 2, 8e9)
    beside_crawl = {node for node, need in found.items() if machine.holds([found["crawl"], need])}
    assert beside_crawl == {node for node, need in found.items() if need.cores == 1} and "benchmarks" in beside_crawl
    assert not any(machine.holds([found[node], found["benchmarks"]]) for node in ("extract", "pretrain", "evaluate@base"))


def test_what_calls_run_shards_declares_workers_and_what_trains_declares_ranks() -> None:
    """A stage that takes more cores than it says would make two nodes at once slower than one after another."""
    sharding = set()
    for path in sorted((PROJECT / "stages").rglob("*.py")):
        calls = (node.func for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
        if any(isinstance(call, ast.Name) and call.id == "run_shards" for call in calls):
            sharding.add(path)
    for node in pipeline():
        stage = stage_of(node)
        own = Path(PROJECT, *stage.run.__module__.split(".")).with_suffix(".py")
        folder = own.parent if own.name == "stage.py" else own
        shards = any(path == own or folder in path.parents for path in sharding)
        assert shards == (stage.cores == "workers"), node.name
        assert (stage.cores == "ranks") == (node.stage_name in ("pretrain", "sft", "reference", "dpo")), node.name
        assert stage.uses_gpus == (stage.cores in ("ranks", "all")), node.name


def test_a_plan_names_the_nodes_that_would_run_at_once() -> None:
    waits = {"a": [], "b": [], "c": ["a"], "d": ["b", "c"], "e": ["d"], "f": ["d"]}
    needs = dict.fromkeys(waits, Need(1, 1))
    assert groups(waits, needs, Room(4, 8, 100), {"a": 10, "b": 100, "c": 5}, set()) == [["a", "b"], ["b", "c"], ["e", "f"]]
    assert groups(waits, needs, Room(4, 8, 100), {"a": 10, "b": 5}, set()) == [["a", "b"], ["e", "f"]], (
        "b ends before a, and c has no company"
    )
    assert groups(waits, needs | {"f": Need(8, 1)}, Room(4, 8, 100), {}, {"a"}) == [["b", "c"]], "a is cached, and f has no room"
    assert groups(waits, needs, Room(1, 8, 100), {}, set()) == []


def test_the_plan_of_a_recipe_says_it_in_a_line_and_in_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "hardware", lambda: {**hardware(), "cores": 2})
    words = ["plan", "tiny", "--until", "decontaminate", "--home", str(tmp_path / "home")]
    assert main([*words, "--set", "runtime.nodes_at_once=4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["at_once"] == [["benchmarks", "crawl"]] and answer["size"]["at once"] == "benchmarks with crawl (runtime.nodes_at_once)"
    assert main(words) == 0 and "at once" not in capsys.readouterr().out, "of two cores, one after another is the default"
