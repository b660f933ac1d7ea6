"""The most that pages within the limits take: processor seconds and memory, by construct, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from tests.corpus.hostile import CONSTRUCTS

pytestmark = pytest.mark.chaos
MAX_S, MAX_MB = 2.0, 300


@pytest.mark.parametrize("engine", ["visible", "resiliparse"])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_no_page_within_the_limits_takes_long_or_much(name: str, engine: str) -> None:
    command = [sys.executable, "-m", "tests.corpus.hostile", name, engine, "0"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=300)
    seconds, grown_mb, length, became = done.stdout.split(maxsplit=3)
    print(name, done.stdout.strip())
    assert float(seconds) < MAX_S and float(grown_mb) < MAX_MB, (length, became)
    assert not became.startswith("FAILED")
