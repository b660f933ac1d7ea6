"""Disks that are full or read-only, for real: a small tmpfs as the home. Needs the right to mount; part of `make test-chaos`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import answered, loam

pytestmark = pytest.mark.chaos


def mount(options: str, folder: Path) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    assert mount("size=200m", folder), (
        "these tests need the right to mount a tmpfs: run them as root, or leave tests/chaos/test_disk.py out"
    )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def resize(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.mark.parametrize("size_mb", [6, 8, 11, 13, 16])
def test_a_full_disk_is_one_message_leaves_nothing_half_published_and_goes_on_when_mended(disk: Path, size_mb: int) -> None:
    """From 6 MB, where the crawl fails, to 16 MB, where extract or the index does."""
    resize(disk, f"size={size_mb}m")
    home = disk / "home"
    failed = loam("run", "tiny", "--until", "extract", home=home, check=False, timeout=300)
    assert failed.returncode == 1, failed.stderr
    assert "No space left on the disk" in failed.stderr and "Traceback" not in failed.stderr and failed.stderr.count("loam: ") == 1
    for manifest in home.glob("artifacts/*/*/manifest.json"):
        json.loads(manifest.read_text())
    assert not list(home.glob("scratch/*/out/manifest.json"))
    resize(disk, "size=200m")
    loam("run", "tiny", "--until", "extract", home=home, timeout=300)
    assert ", 0 differ" in loam("lineage", "verify", home=home).stdout
    assert answered(loam("runs", "list", "--json", home=home).stdout)[0]["state"] == "done"
    assert not list((home / "scratch").iterdir()) and not list(home.glob(".*"))


def test_a_read_only_home_answers_questions_and_refuses_runs(disk: Path) -> None:
    home = disk / "home"
    loam("run", "tiny", "--until", "benchmarks", home=home, timeout=300)
    resize(disk, "ro")
    try:
        assert answered(loam("lineage", "show", "benchmarks", "--json", home=home).stdout)["kind"] == "benchmarks"
        assert answered(loam("plan", "tiny", "--json", home=home).stdout)["steps"][0]["state"] == "cached"
        for words in (["run", "tiny"], ["run", "tiny", "--until", "benchmarks"], ["stage", "crawl", "tiny"], ["lineage", "gc", "--yes"]):
            refused = loam(*words, home=home, check=False)
            assert refused.returncode == 2 and "home folder cannot be written" in refused.stderr, (words, refused.stderr)
            assert "Traceback" not in refused.stderr
    finally:
        resize(disk, "rw")
