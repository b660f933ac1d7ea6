"""Rough times of a machine that has built nothing: FLOPs over speed, coefficients over bytes, nothing where the work is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import main
from flows.opened_recipe import open_session
from stages.questions.calculator.data_cost import Cluster, Crawl, data_cost
from stages.questions.calculator.data_stages import COMMON_CRAWL
from stages.questions.rough_estimate import ATTAINED, TABLE_BYTES_PER_S, MachineSpeed, probed, rough_seconds
from stages.record.contract.states import NodeState

SPEED = MachineSpeed(50e9, TABLE_BYTES_PER_S / 2)


def rough(tmp_path: Path, *settings: str) -> dict[str, float]:
    session = open_session("tiny", settings, str(tmp_path / "home"))
    plan = session.plan("")
    nodes = [step.node for step in plan.steps if step.state in (NodeState.MISSING, NodeState.WAITING)]
    return rough_seconds(session.recipe, session.steps(""), plan, nodes, SPEED)


def test_trainings_take_their_flops_at_a_share_of_the_speed_of_all_ranks(tmp_path: Path) -> None:
    found = rough(tmp_path)
    assert set(found) == {"pretrain", "sft", "dpo"}
    work = 11588059791360 * 640 * 8 * 256 / 1309776  # of a run of tiny: its recorded FLOPs, which count the tokens without padding
    assert found["pretrain"] == pytest.approx(work / (ATTAINED * 50e9 * 2), rel=0.05)
    assert found["sft"] == pytest.approx(found["pretrain"] / 2)  # half the steps of the same batches
    assert found["dpo"] == pytest.approx(found["pretrain"] * 100 * 16 * 2 / (640 * 8))  # two sequences per pair
    assert rough(tmp_path, "runtime.cpu_ranks=1")["pretrain"] == pytest.approx(found["pretrain"] * 2)
    assert "pretrain" not in rough(tmp_path, "pretrain.budget={epochs: 1}")
    assert rough(tmp_path, "pretrain.budget={tokens: 131072}")["pretrain"] == pytest.approx(found["pretrain"] / 10)


def test_stages_over_warc_files_take_what_the_cost_model_says_at_the_speed_of_text(tmp_path: Path) -> None:
    for name, size in (("a.warc.gz", 3_000_000), ("b.warc.gz", 1_000_000)):
        (tmp_path / name).write_bytes(b"\0" * size)
    found = rough(tmp_path, "crawl.docs=null", f"crawl.warcs=['{tmp_path}/*.warc.gz']")
    pages = COMMON_CRAWL.pages_per_file * 2e6 / COMMON_CRAWL.bytes_per_file
    reads = {"crawl": [], "extract": ["crawl"], "boilerplate": ["extract"], "filter": ["boilerplate"]}
    expected = {one.node: 2 * one.wall_s for one in data_cost(Crawl(2, 2e6, pages), Cluster(1, 2), reads, {}, {}).stages}
    assert {node: found[node] for node in expected} == pytest.approx(expected)
    (tmp_path / "notes.jsonl").write_text('{"text": "a"}\n')
    mixed = rough(tmp_path, "crawl.docs=null", f"crawl.sources={{a: ['{tmp_path}/*.warc.gz'], b: ['{tmp_path}/notes.jsonl']}}")
    assert "extract" not in mixed and "pretrain" in mixed


def test_the_probe_finds_a_speed_and_a_plan_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speed = probed()
    assert 1e8 < speed.flops < 1e13 and 1e5 < speed.bytes_per_s < 1e10
    assert main(["plan", "tiny", "--home", str(tmp_path / "home")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rough time")]
    assert " for 3 of the nodes without an earlier build here (pretrain " in line and line.endswith(" GFLOP/s a core")


def test_a_plan_in_which_no_node_has_a_rough_time_names_no_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "tiny", "--until", "benchmarks", "--home", str(tmp_path / "home")]) == 0
    assert "rough time" not in capsys.readouterr().out
