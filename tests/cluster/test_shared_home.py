"""A home that two machines share, on a real file system with two mounts: leases with and without locks between them, two drivers, a machine that is gone.

`make test-cluster`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.shared_mounts import SharedMounts, missing
from tests.conftest import PROJECT
from tests.made.variants import Data

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMounts]:
    assert not (why := missing()), f"no shared file system can be mounted here: {why}"
    mounts = SharedMounts(tmp_path_factory.mktemp("shared"))
    try:
        mounts.start()
        yield mounts
    finally:
        mounts.stop()


def machine(name: str, locks: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cluster.one_machine", name, locks, *words]
    return subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def folders(shared: SharedMounts, name: str) -> tuple[Path, Path]:
    """One folder of the file system, as each of the two machines sees it."""
    one, two = (mount / name for mount in shared.mounts)
    one.mkdir()
    return one, two


@pytest.mark.parametrize("locks", ["local", "coherent"])
def test_a_lease_never_has_two_owners(shared: SharedMounts, locks: str) -> None:
    places = folders(shared, f"races-{locks}")
    both = [machine(name, locks, "contend", str(place), "40") for name, place in zip("ab", places, strict=True)]
    told = [process.communicate(timeout=600)[0] for process in both]
    assert [json.loads(text) for text in told] == [[0, []], [0, []]]
    assert list((places[0] / "leases").iterdir()) == []


@pytest.mark.parametrize("locks", ["local", "coherent"])
def test_an_owner_that_stood_still_publishes_nothing_and_says_so(shared: SharedMounts, locks: str) -> None:
    """It is stopped at the worst place: it has looked at its lease, and would publish next."""
    one, two = folders(shared, f"stopped-{locks}")
    first = machine("a", locks, "build", str(one), "wait")
    assert first.stdout is not None and first.stdin is not None and first.stdout.readline() == "publishes\n"
    first.send_signal(signal.SIGSTOP)
    try:
        second, _ = machine("b", locks, "build", str(two)).communicate(timeout=300)
        published = next(two.glob("artifacts/words/*/manifest.json")).read_bytes()
    finally:
        first.send_signal(signal.SIGCONT)
    said, _ = first.communicate("go on\n", timeout=300)
    assert first.returncode == 1 and "This run lost its lease" in said and "It published nothing since" in said
    assert [path.parent.name for path in two.glob("artifacts/words/*/manifest.json")] == second.split()
    assert next(one.glob("artifacts/words/*/manifest.json")).read_bytes() == published
    assert next(one.glob("manifests/words/*.json")).read_bytes() == published
    assert not list(one.glob("leases/*")) and not list(one.glob("scratch/*"))


@pytest.mark.parametrize("locks", ["local", "coherent"])
def test_a_machine_that_is_gone_is_followed_by_another_one(shared: SharedMounts, locks: str) -> None:
    one, two = folders(shared, f"gone-{locks}")
    first = machine("a", locks, "build", str(one), "wait")
    assert first.stdout is not None and first.stdout.readline() == "publishes\n"
    first.kill()
    first.wait(timeout=60)
    second = machine("b", locks, "build", str(two))
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0 and len(list(two.glob("artifacts/words/*/manifest.json"))) == 1, said
    assert not list(one.glob("leases/*")) and not list(one.glob("scratch/*"))


def built(home: Path) -> dict[str, tuple[str, str]]:
    found = {}
    for path in home.glob("artifacts/*/*/manifest.json"):
        record = json.loads(path.read_text())
        assert record["node"] not in found, f"{record['node']} was built twice"
        found[str(record["node"])] = (str(record["key"]), str(record["digest"]))
    return found


def test_two_drivers_build_each_node_once(shared: SharedMounts, made: Data, tmp_path: Path) -> None:
    locks, warcs = "local", sorted(str(path) for path in made.part("crawl").glob("CRAWL-*.warc.gz"))[:1]
    settings = ("--set", f"crawl.warcs={json.dumps(warcs)}", "--set", "runtime.workers=1")
    words = ("run", "run", "corpus", "--until", "boilerplate", *settings, "--home")
    one, two = folders(shared, f"drivers-{locks}")
    alone = machine("c", locks, *words, str(tmp_path / "home"))
    said, _ = alone.communicate(timeout=600)
    assert alone.returncode == 0, said
    both = [machine(name, locks, *words, str(place)) for name, place in (("a", one), ("b", two))]
    told = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(told)
    assert built(one) == built(two) == built(tmp_path / "home") and len(built(one)) > 2
    runs = [json.loads(path.read_text()) for path in one.glob("runs/*/run.json")]
    assert sorted(run["alias"] for run in runs) == ["corpus-1", "corpus-2"] and sorted(run["seq"] for run in runs) == [1, 2]
    assert not list(one.glob("leases/*")) and not list(one.glob("scratch/*")) and not list(one.glob("holders/*"))
    assert not (one / "lineage.duckdb").exists() and (tmp_path / "home" / "lineage.duckdb").exists()
    assert [line for line in os.listdir(one) if line.startswith(".")] == []
