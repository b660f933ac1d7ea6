"""Kills with SIGKILL at the moments that random ones miss; the run after it builds what is missing, and gc removes what the killed one left.

The moments are before every single change of a folder (rename, link, unlink, rmdir, mkdir, fsync) of a whole run of two nodes, publication,
index and records included.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.record.index import database
from stages.record.run import gc
from stages.record.store import manifest
from tests.chaos.pipeline import held, remains
from tests.conftest import PROJECT

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]


def walk(home: Path, nth: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos.suicide", str(nth), str(home)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120)


def digests(home: Path) -> dict[str, str]:
    found = [manifest.read_artifact(path.parent) for path in sorted(home.glob("artifacts/*/*/manifest.json"))]
    return {manifest.artifact_id(artifact): artifact.manifest["digest"] for artifact in found}


def fault(home: Path, expected: dict[str, str]) -> str:
    """What is wrong with a home after a good walk; empty when nothing is."""
    if digests(home) != expected:
        return f"artifacts {digests(home)}"
    if held(home):
        return f"held: {held(home)}"
    removed, _ = gc.collect(home, 100)
    if left := [row["artifact_id"] for row in removed] + remains(home):
        return f"left behind: {left}"
    indexed = {row["artifact_id"]: row["digest"] for row in database.records(home, "SELECT artifact_id, digest FROM artifact")}
    states = [row["state"] for row in database.records(home, "SELECT state FROM run ORDER BY seq")]
    if indexed != expected or states[-1] != "done" or not set(states[:-1]) <= {"killed", "done"}:
        return f"index {indexed}, runs {states}"
    wrong = [manifest.verify(manifest.read_artifact(home / "artifacts" / name)) for name in indexed]
    return f"files {wrong}" if any(wrong) else ""


def test_a_kill_before_every_change_of_a_folder_is_repaired_by_the_next_walk(tmp_path: Path) -> None:
    whole = walk(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    expected, calls = digests(tmp_path / "whole"), int(whole.stdout)
    assert len(expected) == 2 and calls > 40 and not fault(tmp_path / "whole", expected)
    began, faults = time.monotonic(), []
    for nth in range(1, calls + 1):
        home = tmp_path / str(nth)
        killed, again = walk(home, nth), walk(home, 0)
        assert killed.returncode == -9, killed.stderr
        if again.returncode or (wrong := fault(home, expected)):
            faults.append(f"{nth}: {again.stderr[-600:] or wrong}")
    print(f"\n{calls} kills before changes of folders, {time.monotonic() - began:.0f} s")
    assert not faults, "\n".join(faults)
