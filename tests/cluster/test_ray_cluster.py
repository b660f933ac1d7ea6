"""A corpus on a real Ray of two nodes, undisturbed and under kills, has the keys and digests of the local run. `make test-cluster`."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.corpus import built, said, started, workers
from tests.cluster.ray_servers import Cluster, made_cluster, missing, run
from tests.conftest import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    assert not (why := missing()), f"no Ray can be started here: {why}"
    servers = made_cluster(Path(tempfile.mkdtemp(prefix="loamray", dir="/tmp")), tmp_path_factory.mktemp("environment"))
    try:
        servers.start()
        yield servers
    finally:
        servers.stop_all()


def on_ray(recipe: tuple[str, ...], home: Path, cluster: Cluster) -> subprocess.Popen[bytes]:
    asked = ("--set", "runtime.engine=ray", "--set", f"runtime.ray={{elements: 2, address: '{cluster.address}'}}")
    return started(recipe, home, *asked, variables=cluster.environment, before=cluster.before)


def submissions(home: Path) -> list[str]:
    """What was made, in the order in which it was submitted."""
    return re.findall(r"shards of (.*) as [\d,]+ tasks of Ray", said(home))


def test_a_corpus_has_the_keys_and_digests_of_the_local_run(
    recipe: tuple[str, ...], expected: dict[str, tuple[str, str]], cluster: Cluster, tmp_path: Path
) -> None:
    assert on_ray(recipe, tmp_path / "home", cluster).wait(timeout=1500) == 0, said(tmp_path / "home")
    assert built(tmp_path / "home") == expected
    assert len(submissions(tmp_path / "home")) > 5
    # asked inside the namespace: psutil sees the connections of this process's own
    listening = [line.split()[3] for line in run("ip", "netns", "exec", cluster.namespace, "ss", "-Hltn").splitlines()]
    assert listening and all(one.startswith(("127.0.0.1:", "[::ffff:127.0.0.1]:")) for one in listening)
    assert not workers(tmp_path), "nothing is left"


def kill_a_worker(cluster: Cluster, driver: subprocess.Popen[bytes], home: Path) -> None:
    workers(home)[0].kill()


def kill_a_raylet(cluster: Cluster, driver: subprocess.Popen[bytes], home: Path) -> None:
    """The second raylet dies with its task. The run ends on the node that is left."""
    cluster.raylets()[1].kill()


def kill_the_driver(cluster: Cluster, driver: subprocess.Popen[bytes], home: Path) -> None:
    """Ray's own end of its tasks is waited for, to see that it comes."""
    driver.kill()
    driver.wait(timeout=60)
    until(lambda: not workers(home), 60)


@pytest.mark.parametrize("fault", [kill_a_worker, kill_a_raylet, kill_the_driver])
def test_a_fault_in_the_middle_changes_nothing(
    recipe: tuple[str, ...], expected: dict[str, tuple[str, str]], cluster: Cluster, tmp_path: Path,
    fault: Callable[[Cluster, subprocess.Popen[bytes], Path], None],
) -> None:  # fmt: skip
    home = tmp_path / "home"
    if len(cluster.raylets()) < 2:
        cluster.node(f"--address={cluster.address}")
    driver = on_ray(recipe, home, cluster)
    try:
        until(lambda: len(workers(home)) > 1 or driver.poll() is not None, 300)  # one on each node
        assert driver.poll() is None, said(home)
        fault(cluster, driver, home)
        if driver.poll() is not None:
            driver = on_ray(recipe, home, cluster)
        assert driver.wait(timeout=1500) == 0, said(home)
    finally:
        with suppress(ProcessLookupError):
            driver.send_signal(signal.SIGTERM)
            driver.wait(timeout=60)
    assert built(home) == expected
    made = submissions(home)
    assert fault is kill_the_driver or any(one == next_ for one, next_ in pairwise(made)), "what was lost was submitted again"
