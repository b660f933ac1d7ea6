"""A whole pipeline that takes less than a minute, and what its end and its remains look like. Shared by the chaos tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from flows.pipeline import pipeline, stage_of
from stages.record.store import lease
from tests.conftest import PROJECT

MARK = "LOAM_CHAOS"
"""A variable that all processes below a run inherit, by which those of one test are found in the process table."""
SETTINGS = {
    "crawl.docs.packages": "[networkx]", "crawl.docs.max_pages": "120", "crawl.shards": "4",
    "benchmarks.docstrings.packages": "[networkx]", "benchmarks.docstrings.items": "40", "train_tokenizer.vocab_size": "600",
    "mix.seq_len": "128", "mix.max_validation_documents": "8", "conversations.docstrings.what": "100",
    "conversations.docstrings.complete": "400", "preferences.docstrings.what": "60", "preferences.docstrings.complete": "120",
    "pretrain.model": "{num_hidden_layers: 2, hidden_size: 32, num_attention_heads: 2, num_key_value_heads: 2, intermediate_size: 64, tie_word_embeddings: false}",
    "pretrain.budget.steps": "30", "pretrain.warmup_steps": "5", "pretrain.eval_every_steps": "15",
    "pretrain.checkpoint_every_steps": "5", "pretrain.max_validation_sequences": "16", "sft.budget.steps": "20", "sft.warmup_steps": "5",
    "sft.eval_every_steps": "10", "sft.checkpoint_every_steps": "5", "sft.max_validation_sequences": "16", "reference.max_pairs": "60",
    "dpo.budget.steps": "6", "dpo.warmup_steps": "2", "dpo.eval_every_steps": "3", "dpo.checkpoint_every_steps": "2",
    "dpo.max_validation_sequences": "16",
}  # fmt: skip


def words(home: Path, *more: str, settings: Mapping[str, str] = SETTINGS) -> list[str]:
    """The words of `loam run` on the small pipeline."""
    return ["run", "tiny", *more, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")), "--home", str(home)]


def start(command: list[str], mark: str, said: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts python with a command; what it prints goes to `said`."""
    with said.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *command], cwd=PROJECT, env={**environment, MARK: mark}, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip


def alive(process: psutil.Process) -> bool:
    """Whether a process can still do anything: one that has ended but was not waited for (an orphan below a lazy init) cannot."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def processes(mark: str) -> list[psutil.Process]:
    """Every living process that was started below a run of this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and alive(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_until_gone(mark: str, within_s: float) -> list[str]:
    """Waits for all processes of a mark; returns the command lines of those still there after that long."""
    end = time.monotonic() + within_s
    while (left := processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return [f"{process.pid} {' '.join(process.cmdline())[:200]}" for process in left if alive(process)]


def held(home: Path) -> list[str]:
    """The nodes whose keys some run builds at this moment."""
    return [path.name.rpartition("-")[0] for path in sorted((home / "leases").glob("*")) if lease.held_by(path)]


def outcome(home: Path) -> dict[str, Any]:
    """Node -> digest for data nodes, every recorded loss for nodes that train, every score for the report."""
    deterministic = {node.name: stage_of(node).deterministic for node in pipeline()}
    found: dict[str, Any] = {}
    for path in sorted(home.glob("artifacts/*/*/manifest.json")):
        record = json.loads(path.read_text())
        node = record["node"]
        metrics = path.parent / "metrics.parquet"
        if metrics.is_file():
            value: Any = pq.read_table(metrics, columns=["step", "tokens", "loss", "validation_loss"]).to_pylist()
        elif node == "report":
            value = json.loads((path.parent / "results.json").read_text())  # its pages also tell seconds
        else:
            value = record["digest"] if deterministic[node] else record["rows"]
        assert node not in found, f"{node} has two artifacts"
        found[node] = value
    return found


def remains(home: Path) -> list[str]:
    """What should not be in a home where nothing is under way: scratch, leases, temporary files, half records. Prefect's folder is its own."""
    paths = [path for path in home.rglob("*") if "prefect" not in path.relative_to(home).parts]
    inside = [p for p in paths if p.relative_to(home).parts[0] in ("scratch", "leases") and len(p.relative_to(home).parts) > 1]
    leases = [p for p in paths if p.name == "lease"]
    temporary = [p for p in paths if p.name.startswith(".") or p.suffix in (".tmp", ".wal", ".partial")]
    half = [p.parent for p in (home / "runs").glob("*/") if not (p / "run.json").is_file()]
    return sorted({str(p.relative_to(home)) for p in [*inside, *leases, *temporary, *half]})


def shared_environment() -> dict[str, str]:
    """The environment without any Prefect server named in it, one thread per process."""
    return {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | {"OMP_NUM_THREADS": "1"}
