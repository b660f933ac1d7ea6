"""The home of a small pipeline that was never killed, and the marks of processes."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.pipeline import outcome, remains, shared_environment, wait_until_gone, words
from tests.conftest import PROJECT


@pytest.fixture(scope="session")
def never_killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict[str, float]]:
    """What a run without any kill ends with, and the seconds of its nodes."""
    home, mark = tmp_path_factory.mktemp("calm") / "home", uuid.uuid4().hex
    environment = shared_environment() | {"LOAM_CHAOS": mark}
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
