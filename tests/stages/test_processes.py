"""Helpers around the operating system: locks between owners, a free port, a child process that dies with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from stages.processes import free_port, lock_file
from tests.conftest import until


@pytest.mark.parametrize(
    ("first", "second", "both"), [(True, True, True), (True, False, False), (False, True, False), (False, False, False)]
)
def test_only_shared_locks_stand_beside_each_other(tmp_path: Path, first: bool, second: bool, both: bool) -> None:
    with (tmp_path / "lock").open("a") as one, (tmp_path / "lock").open("a") as other:
        assert lock_file(one.fileno(), shared=first)
        assert lock_file(other.fileno(), shared=second) is both
        one.close()
        assert lock_file(other.fileno(), shared=second)


def test_who_waits_gets_the_lock_when_its_owner_closes_the_file(tmp_path: Path) -> None:
    got = threading.Event()

    def wait() -> None:
        with (tmp_path / "lock").open("a") as mine:
            assert lock_file(mine.fileno(), wait=True)
            got.set()

    with (tmp_path / "lock").open("a") as held:
        assert lock_file(held.fileno())
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        assert not got.wait(0.2)
    assert got.wait(20)
    waiting.join(20)


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()


CHILD = "import sys, time; from stages.processes import die_with_parent; die_with_parent(int(sys.argv[1])); print(1, flush=True); time.sleep(99)"
PARENT = (
    "import os, subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE);"
    "child.stdout.readline(); print(child.pid, flush=True); time.sleep(99)"
)


def test_a_child_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(timeout=20)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 20)


def test_a_child_whose_parent_is_already_gone_leaves() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1 and done.stdout == b""
