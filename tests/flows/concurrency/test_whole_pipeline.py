"""The whole small pipeline one node after another and with up to four at once: the same keys, digests, names, order of records and report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import pipeline
from stages.record.index import database
from stages.record.store import runs
from tests.chaos.pipeline import SETTINGS, remains, words
from tests.conftest import PROJECT

pytestmark = pytest.mark.long

FEW = SETTINGS | {
    "pretrain.budget.steps": "4", "pretrain.warmup_steps": "1", "pretrain.eval_every_steps": "2", "pretrain.checkpoint_every_steps": "2",
    "sft.budget.steps": "4", "sft.warmup_steps": "1", "sft.eval_every_steps": "2", "sft.checkpoint_every_steps": "2",
    "dpo.budget.steps": "2", "dpo.warmup_steps": "1", "dpo.eval_every_steps": "1", "dpo.checkpoint_every_steps": "1",
    "runtime.workers": "1", "runtime.cpu_ranks": "1",
}  # fmt: skip


def stored(home: Path) -> dict[str, Any]:
    """Everything that the only run of a home left, without ids, times and places."""
    (run_id,) = runs.run_ids(home)
    record = runs.read_run(home, run_id)
    artifacts = {}
    for path in home.glob("artifacts/*/*/manifest.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        inputs = {role: one["digest"] for role, one in found["inputs"].items()}
        if found["node"] == "report":  # its pages tell how long the nodes took
            found["digest"] = [(path.parent / name).read_bytes() for name in ("results.json", "verdicts.json")]
        artifacts[found["node"]] = [*(found[name] for name in ("key", "digest", "alias", "rows", "config", "record_counts")), inputs]
    table = "SELECT ordinal, node, state, artifact_id, message FROM node_run ORDER BY ordinal"
    named = "SELECT number, alias FROM artifact ORDER BY alias"
    return {
        "artifacts": {node.name: artifacts[node.name] for node in pipeline() if node.name in artifacts}, "alias": record["alias"],
        "nodes": [[line["node"], line["state"], line["artifact"]] for line in record["nodes"]], "table": database.query(home, table)[1],
        "aliases": [alias for _, alias in database.query(home, named)[1]], "remains": remains(home),
    }  # fmt: skip


def beside(home: Path) -> set[tuple[str, str]]:
    """Pairs of nodes whose builds overlap in time, as their manifests say."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in home.glob("artifacts/*/*/manifest.json")]
    times = {one["node"]: [datetime.fromisoformat(one[end]) for end in ("started", "ended")] for one in found}
    return {(a, b) for a in times for b in times if a < b and times[a][0] < times[b][1] and times[b][0] < times[a][1]}


@pytest.mark.timeout(1800)
def test_the_whole_pipeline_leaves_the_same_however_many_nodes_run_at_once(tmp_path: Path) -> None:
    for at_once in ("1", "4"):
        command = [sys.executable, "-m", "flows.cli", *words(tmp_path / at_once, settings=FEW | {"runtime.nodes_at_once": at_once})]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stderr[-3000:]
    assert stored(tmp_path / "4") == stored(tmp_path / "1") and not stored(tmp_path / "1")["remains"]
    assert not beside(tmp_path / "1")
    if len(os.sched_getaffinity(0)) > 1:
        assert ("benchmarks", "crawl") in beside(tmp_path / "4") and len(beside(tmp_path / "4")) > 2
