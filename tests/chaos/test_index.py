"""The index with sixteen writers at once; tests/record/index/test_database_fire.py has the same with fewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.record.index.test_database_fire import half_indexed, recorders_lose_nothing, wanted_keys_are_built_once

pytestmark = pytest.mark.chaos


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return half_indexed(tmp_path / "home")


def test_sixteen_recorders_of_two_hundred_artifacts_lose_nothing(home: Path) -> None:
    recorders_lose_nothing(home, 16, 200)


def test_sixteen_processes_that_want_the_same_twenty_keys_build_each_once(home: Path) -> None:
    wanted_keys_are_built_once(home, 16)
