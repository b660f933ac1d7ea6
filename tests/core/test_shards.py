"""Workers of sharded stages under real SIGKILLs: none works on after its stage, and none's death goes unnoticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import PROJECT

WITHIN_S = 10


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int], list[psutil.Process]]]:
    """A process in the middle of two slow shards: it, the pids of the workers, and everything it has started."""
    command = [sys.executable, "-m", "tests.core.slow", str(tmp_path)]
    process = subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True)
    written = [tmp_path / "slow" / f"{i:05d}.partial" / "lines.txt" for i in range(2)]
    end = time.monotonic() + 60
    while not all(path.is_file() and path.read_text().count("\n") > 1 for path in written):
        assert time.monotonic() < end and process.poll() is None, "the workers did not start"
        time.sleep(0.1)
    workers = [int(path.read_text().split("\n")[0]) for path in written]
    started = psutil.Process(process.pid).children(recursive=True)
    assert set(workers) <= {child.pid for child in started}
    yield process, workers, started
    for child in [process, *started]:
        if child.is_running() if isinstance(child, psutil.Process) else child.poll() is None:
            child.kill()
    process.communicate()


def gone(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those of the processes that still run after that long."""
    return psutil.wait_procs(processes, timeout=within_s)[1]


def test_workers_die_with_a_killed_stage_and_write_no_more(stage, tmp_path: Path) -> None:
    process, workers, started = stage
    process.kill()
    process.wait()
    left = gone(started, WITHIN_S)
    assert not left, [child.cmdline() for child in left]
    sizes = [path.stat().st_size for path in sorted(tmp_path.rglob("lines.txt"))]
    time.sleep(0.5)
    assert [path.stat().st_size for path in sorted(tmp_path.rglob("lines.txt"))] == sizes


def test_a_killed_worker_fails_the_stage(stage) -> None:
    process, workers, started = stage
    os.kill(workers[0], signal.SIGKILL)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "A worker process of slow was killed" in said and "runtime.workers" in said
    assert not gone(started, WITHIN_S)
