"""Prefect servers of runs: one per database, whoever comes second gets a database of its own, and none outlives its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows import prefect_server
from flows.prefect_server import _free_database, main_database, stop, wait_until_healthy
from stages.record.contract.errors import StageError
from stages.record.processes import free_port
from tests.conftest import PROJECT, answered, behind_a_dead_proxy, loam

pytestmark = pytest.mark.long

SMALL = ["--set", "crawl.docs={packages: [datasketch], max_pages: 20}", "--until", "extract"]


@pytest.mark.server
def test_two_runs_at_once_each_have_a_server_on_a_database_of_their_own(tmp_path: Path) -> None:
    """Both really run, behind a proxy that answers nobody; what both need is built once; no server is left."""
    command = [sys.executable, "-m", "flows.cli", "run", "tiny", "--prefect", *SMALL, "--home", str(tmp_path)]
    environment = behind_a_dead_proxy({name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"})
    runs = [subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    databases = sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("prefect.db"))
    assert databases == ["prefect", "prefect/beside-2"]
    assert "locked" not in "".join(said)
    recorded = answered(loam("runs", "list", "--json", home=tmp_path).stdout)
    assert [run["state"] for run in recorded] == ["done", "done"]
    assert sum(run["built"] for run in recorded) == 2, "crawl and extract, once each"
    assert not [p for p in psutil.process_iter(["environ"]) if str(tmp_path) in str((p.info["environ"] or {}).get("PREFECT_HOME"))]


def test_a_database_is_free_again_when_its_server_is_gone(tmp_path: Path) -> None:
    prefect = tmp_path / "prefect"
    with _free_database(tmp_path) as (first, lock):
        assert first == prefect
        holder = subprocess.Popen(["sleep", "60"], pass_fds=[lock])  # as the server does, it keeps the lock when ours is closed
    with _free_database(tmp_path) as (second, _):
        assert second == prefect / "beside-2"
    with pytest.raises(StageError) as caught, main_database(tmp_path):
        pass
    assert "Another Prefect server works on this home's database." in str(caught.value) and "--home" in str(caught.value)
    holder.kill()
    holder.wait(timeout=60)
    with _free_database(tmp_path) as (third, _), _free_database(tmp_path) as (fourth, _):
        assert (third, fourth) == (prefect, prefect / "beside-2")


def test_a_server_that_does_not_start_says_what_happened_and_promises_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "START_TIMEOUT_S", 0.5)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as ended:
        ended.wait(timeout=60)
        with pytest.raises(StageError, match="The Prefect server ended with exit code 3 before it answered") as caught:
            wait_until_healthy(free_port(), ended)
    assert "If it printed a reason" in str(caught.value) and "disk is full" in str(caught.value)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as silent:
        with pytest.raises(StageError, match=r"The Prefect server did not answer within 0.5 s\.") as caught:
            wait_until_healthy(free_port(), silent)
        silent.kill()
    assert "printed" not in str(caught.value) and "Run the same command again" in str(caught.value)


def test_a_second_interrupt_kills_a_server_that_is_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a traceback from atexit, and a server that is left behind."""
    stubborn = 'trap "" TERM; echo ready; while :; do sleep 0.1; done'
    children = [subprocess.Popen(["bash", "-c", stubborn], stdout=subprocess.PIPE, start_new_session=True) for _ in range(2)]
    for child in children:
        assert child.stdout and child.stdout.readline() == b"ready\n"
    wait = subprocess.Popen.wait

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait(self)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    stop(children)
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2


def test_the_prefect_folder_of_another_user_is_none_of_a_runs_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*words: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert prefect_server.served_url(tmp_path) == ""
