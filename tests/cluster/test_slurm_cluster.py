"""A corpus on a real Slurm of two nodes, undisturbed and under kills, has the keys and digests of the local run. `make test-cluster`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.slurm_servers import Cluster, missing
from tests.conftest import PROJECT, until
from tests.made.variants import Data

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
WORKER = "stages.record.engines.worker"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assert not (why := missing()), f"no Slurm can be started here: {why}"
    servers = Cluster(tmp_path_factory.mktemp("slurm") / "c")
    try:
        servers.start()
        yield servers
    finally:
        servers.stop_all()
        for process in workers():
            process.kill()


@pytest.fixture(scope="module")
def recipe(made: Data) -> tuple[str, ...]:
    """The words of `loam run` for a corpus of the made crawl."""
    warcs = sorted(str(path) for path in made.part("crawl").glob("CRAWL-*.warc.gz"))
    assert len(warcs) > 1
    return (
        "run", "corpus", "--until", "mix", "--set", f"crawl.warcs={json.dumps(warcs)}", "--set", "train_tokenizer.vocab_size=600",
        "--set", "mix.seq_len=128", "--set", "mix.validation_frac=0.05",
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(recipe: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Node -> (key, digest) of the local run."""
    home = tmp_path_factory.mktemp("local")
    done = started(recipe, home, {})
    assert done.wait(timeout=600) == 0, said(home)
    return built(home)


def started(recipe: tuple[str, ...], home: Path, variables: dict[str, str], *more: str) -> subprocess.Popen[bytes]:
    """A driver; its output is home/said."""
    home.mkdir(exist_ok=True)
    with (home / "said").open("ab") as output:
        command = [sys.executable, "-m", "flows.cli", *recipe, "--home", str(home), *more]
        return subprocess.Popen(command, cwd=PROJECT, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT)


def on_slurm(recipe: tuple[str, ...], home: Path, cluster: Cluster) -> subprocess.Popen[bytes]:
    return started(
        recipe, home, cluster.environment, "--set", "runtime.engine=slurm", "--set", "runtime.slurm={elements: 2, partition: all}"
    )


def said(home: Path) -> str:
    return (home / "said").read_text(errors="replace")


def built(home: Path) -> dict[str, tuple[str, str]]:
    found = {}
    for path in home.glob("artifacts/*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        found[str(manifest["node"])] = (str(manifest["key"]), str(manifest["digest"]))
    assert len(found) > 6
    return found


def workers() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if WORKER in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_a_corpus_has_the_keys_and_digests_of_the_local_run(
    recipe: tuple[str, ...], expected: dict[str, tuple[str, str]], cluster: Cluster, tmp_path: Path
) -> None:
    assert on_slurm(recipe, tmp_path / "home", cluster).wait(timeout=900) == 0, said(tmp_path / "home")
    assert built(tmp_path / "home") == expected
    assert len(re.findall(r"array loam:\S+ of Slurm", said(tmp_path / "home"))) > 5
    assert not cluster.run("squeue", "-h").strip(), "nothing is left in the queue"


def kill_a_task(cluster: Cluster, driver: subprocess.Popen[bytes]) -> None:
    workers()[0].kill()


def kill_a_node(cluster: Cluster, driver: subprocess.Popen[bytes]) -> None:
    """Slurmd and all that it started die; the controller notices after SlurmdTimeout and requeues. Then the node comes back."""
    pid = int((cluster.folder / "slurmd.node1.pid").read_text())
    for process in [*psutil.Process(pid).children(recursive=True), *workers()[:1]]:
        with suppress(psutil.Error):
            process.kill()
    cluster.stop("slurmd.node1.pid")
    cluster.node("node1")


def restart_the_controller(cluster: Cluster, driver: subprocess.Popen[bytes]) -> None:
    cluster.stop("slurmctld.pid")
    cluster.controller()


def kill_the_driver(cluster: Cluster, driver: subprocess.Popen[bytes]) -> None:
    driver.kill()
    driver.wait(timeout=60)


@pytest.mark.parametrize("fault", [kill_a_task, kill_a_node, restart_the_controller, kill_the_driver])
def test_a_fault_in_the_middle_changes_nothing(
    recipe: tuple[str, ...], expected: dict[str, tuple[str, str]], cluster: Cluster, tmp_path: Path,
    fault: Callable[[Cluster, subprocess.Popen[bytes]], None],
) -> None:  # fmt: skip
    until(lambda: not workers(), 120)
    driver = on_slurm(recipe, tmp_path / "home", cluster)
    until(lambda: workers() or driver.poll() is not None, 300)
    assert driver.poll() is None, said(tmp_path / "home")
    fault(cluster, driver)
    if driver.poll() is not None:
        driver = on_slurm(recipe, tmp_path / "home", cluster)
    try:
        assert driver.wait(timeout=900) == 0, said(tmp_path / "home")
    finally:
        driver.send_signal(signal.SIGTERM)
    assert built(tmp_path / "home") == expected
    until(lambda: cluster.states() <= {"idle", "mixed", "allocated"}, 120)
    if fault is kill_the_driver:
        assert "which an earlier run submitted" in said(tmp_path / "home")
