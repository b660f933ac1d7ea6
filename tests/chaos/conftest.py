"""A Prefect server that many short runs share, and the home of a small pipeline that was never killed."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.prefect_access import AUTH, new_auth
from flows.prefect_environment import prefect_settings
from flows.prefect_server import api_url, main_database, start_server, stop, wait_until_healthy
from stages.processes import free_port
from tests.chaos.pipeline import outcome, remains, shared_environment, wait_until_gone, words
from tests.conftest import PROJECT


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of runs that use one standing server: each saves the seconds of starting its own."""
    home = tmp_path_factory.mktemp("server")
    port = free_port()
    environment = shared_environment() | prefect_settings(home) | {AUTH: new_auth()}
    with main_database(home) as lock:
        server = start_server(port, environment, lock)
    wait_until_healthy(port, server)
    yield environment | {"PREFECT_API_URL": api_url(port)}
    stop([server])


@pytest.fixture(scope="session")
def never_killed(tmp_path_factory: pytest.TempPathFactory, shared_server: dict[str, str]) -> tuple[dict, dict[str, float]]:
    """What a run without any kill ends with, and the seconds of its nodes."""
    home, mark = tmp_path_factory.mktemp("calm") / "home", uuid.uuid4().hex
    environment = shared_server | {"LOAM_CHAOS": mark}
    subprocess.run([sys.executable, "-m", "flows.cli", *words(home)], cwd=PROJECT, env=environment, check=True, capture_output=True)
    assert not wait_until_gone(mark, 10) and not remains(home)
    (nodes,) = home.glob("runs/*/nodes.jsonl")
    lines = [json.loads(line) for line in nodes.read_text().splitlines()]
    return outcome(home), {line["node"]: line["seconds"] for line in lines}


@pytest.fixture
def mark() -> Iterator[str]:
    """The mark of one test's processes; what is left of them at its end is ended, whatever the test found."""
    from tests.chaos.pipeline import processes

    value = uuid.uuid4().hex
    yield value
    for left in processes(value):
        left.kill()


def home_of(tmp_path: Path) -> Path:
    return tmp_path / "home"
