"""Kills one process of a training job, the launcher or a rank, at twenty random moments. The weights are those of a run without kills.

Moments and processes are drawn with a fixed seed. A third of the moments is in the start of the ranks (imports, loading, verification of
the snapshot), the others are after some more steps, so that steps, evaluations and snapshots are hit.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from stages.training.checkpoints import checkpoint
from stages.training.launch.heartbeat import heartbeat_path, read_beat
from stages.training.measures.metrics import read_metrics
from tests.chaos.pipeline import MARK, processes, wait_until_gone
from tests.conftest import PROJECT

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

KILLS = 20
GONE_WITHIN_S = 20
STEPS = 200
JOB = """
import os, sys
from dataclasses import replace
from pathlib import Path
from stages.training.job.job import Machine
from stages.training.launch.launch import launch
from tests.training.made import changed, small_job

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
job = changed(small_job(folder, Machine(2, "cpu", 2, 2), int(sys.argv[2])), checkpoint_every_steps=5, eval_every_steps=7)
launch(replace(job, validation=job.train), lambda rank, event: None, dict(os.environ))
"""


def start(folder: Path, mark: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", JOB, str(folder), str(STEPS)]
    said = (folder.parent / "said.txt").open("ab")
    return subprocess.Popen(command, cwd=PROJECT, env={**os.environ, MARK: mark}, stdout=said, stderr=said)


def reached(folder: Path) -> int:
    """Returns the step of the first rank since its start; 0 before the first."""
    return read_beat(heartbeat_path(folder / "scratch", 0)).step


def wait_for_step(launcher: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    while reached(folder) < step and launcher.poll() is None:
        time.sleep(0.005)


def kill_at_random(draw: random.Random, launcher: subprocess.Popen[bytes], folder: Path, mark: str, start_s: float) -> str:
    """Kills a process at the drawn moment; returns which one and what the ranks did."""
    if draw.random() < 1 / 3:
        time.sleep(draw.uniform(0.0, start_s))
    else:
        wait_for_step(launcher, folder, 1)
        wait_for_step(launcher, folder, reached(folder) + draw.randint(0, 14))
        time.sleep(draw.uniform(0.0, 0.1))
    found = sorted(processes(mark), key=lambda process: process.pid)
    assert launcher.poll() is None and found, (folder.parent / "said.txt").read_text()
    hit = found[draw.randrange(len(found))]
    beat = read_beat(heartbeat_path(folder / "scratch", 0))
    try:
        name = f"rank {hit.environ()['RANK']}" if hit.pid != launcher.pid else "launcher"
    except (psutil.Error, KeyError):
        name = "a rank that starts"
    hit.kill()
    return f"{name:<20} {beat.activity} {beat.step or ''}"


def results(folder: Path) -> tuple[dict[str, torch.Tensor], list[tuple[float | None, ...]]]:
    """Returns the weights, and the metrics without clock values."""
    lines = read_metrics(folder / "scratch" / "metrics.jsonl")
    curve = [(line["step"], line.get("loss"), line.get("grad_norm"), line.get("validation_loss")) for line in lines]
    return checkpoint.consolidate(folder / "out" / "checkpoint"), curve


def test_twenty_kills_of_any_process_of_a_training_change_nothing(tmp_path: Path, mark: str) -> None:
    draw, table = random.Random(20_261), list[str]()
    began = time.monotonic()
    calm = start(tmp_path / "calm", mark)
    wait_for_step(calm, tmp_path / "calm", 1)
    start_s = time.monotonic() - began
    assert calm.wait(timeout=600) == 0, (tmp_path / "said.txt").read_text()
    expected, curve = results(tmp_path / "calm")
    folder = tmp_path / "killed"
    for number in range(1, KILLS + 1):
        launcher = start(folder, mark)
        table.append(f"{number:>4}  {kill_at_random(draw, launcher, folder, mark, start_s)}")
        assert launcher.wait(timeout=60) != 0
        assert not wait_until_gone(mark, GONE_WITHIN_S), table[-1]
        assert not (folder / "out").exists(), "a killed job leaves no checkpoint"
    last = start(folder, mark)
    assert last.wait(timeout=600) == 0, (tmp_path / "said.txt").read_text()
    print(f"\n{'':>4}  process              rank 0 was in\n" + "\n".join(table) + f"\n{time.monotonic() - began:.0f} s")
    weights, found = results(folder)
    assert found == curve and weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    hit = Counter(line[6:14].strip() for line in table)
    assert hit["launcher"] and hit["rank 0"] and hit["rank 1"], table
