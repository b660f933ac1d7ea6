"""Leases: one owner at a time, a dead owner's lease is taken over, nothing stays behind, no clock decides."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stages.record.store import lease
from tests.conftest import PROJECT, until

HOLD = (
    "import sys, time, pathlib; from stages.record.store.lease import lease\n"
    "with lease(pathlib.Path(sys.argv[1]), 'other'): print('held', flush=True); time.sleep(600)"
)


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_is_written_while_held_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "leases" / "words-1"
    with lease.lease(path, "tiny-7"):
        record = json.loads(path.read_text())
        assert (record["owner"], record["pid"], record["boot_id"], record["beat"]) == ("tiny-7", os.getpid(), lease.boot_id(), 0)
        assert lease.held_by(path) == f"run tiny-7, process {os.getpid()} on {record['host']}"
    assert not path.exists() and lease.held_by(path) == ""


def test_the_heartbeat_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.02)
    with lease.lease(tmp_path / "x", "a"):
        until(lambda: json.loads((tmp_path / "x").read_text())["beat"] >= 3)


def test_the_second_waits_hears_who_has_it_and_gets_it(tmp_path: Path) -> None:
    path, heard, got = tmp_path / "x", [], []

    def second() -> None:
        with lease.lease(path, "second", heard.append):
            got.append(time.monotonic())

    with lease.lease(path, "first"):
        thread = threading.Thread(target=second)
        thread.start()
        until(lambda: heard)
        assert not got
        released = time.monotonic()
    thread.join(timeout=60)
    assert got[0] >= released and len(heard) == 1 and heard[0].startswith(f"run first, process {os.getpid()}")


def test_a_killed_owners_lease_is_taken_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x"
    process = holder(path)
    assert lease.held_by(path).startswith(f"run other, process {process.pid}")
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert path.exists() and lease.held_by(path) == ""
    heard: list[str] = []
    with lease.lease(path, "me", heard.append):
        assert json.loads(path.read_text())["owner"] == "me"
    assert heard == []


def test_another_boots_lease_is_taken_over_when_its_heartbeat_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "x"
    record = {"owner": "far", "pid": 1, "boot_id": "of another machine", "host": "far.invalid", "beat": 3}
    path.write_text(json.dumps(record))
    clock, looks = [0.0], []

    def tick() -> float:  # 10 s a look; the far owner beats until the fifth
        clock[0] += 10
        looks.append(1)
        if len(looks) < 10:
            path.write_text(json.dumps(record | {"beat": len(looks)}))
        return clock[0]

    heard: list[str] = []
    with lease.lease(path, "me", heard.append, tick):
        assert json.loads(path.read_text())["owner"] == "me"
    assert len(looks) >= 10 + 3 and heard == ["run far, process 1 on far.invalid"]


def test_a_lease_whose_owner_died_before_writing_is_free(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with lease.lease(tmp_path / "x", "me"):
        pass
    assert not (tmp_path / "x").exists()


def test_many_threads_never_hold_it_together(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(5):
            with lease.lease(tmp_path / "x", "t"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.002)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert most[0] == 1


def test_a_lease_is_live_while_its_owner_is(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert not lease.is_live(path)
    with lease.lease(path, "me"):
        assert lease.is_live(path)
    path.write_text("")
    assert not lease.is_live(path), "its owner died before it wrote the record"
    process = holder(path)
    assert lease.is_live(path)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert path.exists() and not lease.is_live(path)


@pytest.mark.parametrize("beats", [True, False])
def test_a_lease_of_another_boot_is_live_if_its_heartbeat_rises(tmp_path: Path, beats: bool) -> None:
    path, clock = tmp_path / "x", [0.0]
    record = {"owner": "far", "pid": 1, "boot_id": "of another machine", "host": "far.invalid", "beat": 3}
    path.write_text(json.dumps(record))

    def tick() -> float:  # 10 s a look
        clock[0] += 10
        if beats and clock[0] == 30:
            path.write_text(json.dumps(record | {"beat": 4}))
        return clock[0]

    assert lease.is_live(path, tick) is beats and path.exists()
    assert clock[0] <= 60
