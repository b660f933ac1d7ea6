"""An export and an evaluation on a node of a real Slurm give the digests of a local run, undisturbed and under faults. `make test-cluster`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from stages.evaluation.elsewhere.run_elsewhere import PROCESS
from tests.cluster.corpus import built, said, started
from tests.cluster.slurm_servers import Cluster
from tests.conftest import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

RECIPE = (
    "run", "tiny", "--set", "crawl.docs.max_pages=150", "--set", "crawl.shards=2", "--set", "benchmarks.docstrings.items=40",
    "--set", "train_tokenizer.vocab_size=1000", "--set", "pretrain.budget={steps: 8}", "--set", "pretrain.warmup_steps=2",
    "--set", "evaluate@base.baselines=false",
)  # fmt: skip
EVALUATED = (*RECIPE, "--until", "evaluate@base")
ON_SLURM = (*EVALUATED, "--set", "runtime.launcher=slurm", "--set", "runtime.slurm_training={partition: all, cores: 1}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a checkpoint, made here."""
    home = tmp_path_factory.mktemp("trained")
    assert started((*RECIPE, "--until", "pretrain"), home).wait(timeout=1500) == 0, said(home)
    return home


@pytest.fixture(scope="module")
def expected(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Node -> (key, digest) of the local run."""
    home = tmp_path_factory.mktemp("local") / "home"
    shutil.copytree(trained, home, symlinks=True)
    assert started(EVALUATED, home).wait(timeout=600) == 0, said(home)
    return built(home)


def processes(home: Path, node: str) -> list[psutil.Process]:
    """The processes of a stage on nodes of the cluster, without their agents."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if PROCESS in words and any(word.startswith(f"{home}/scratch/{node}") for word in words):
                found.append(process)
    return found


def nothing(cluster: Cluster, running: subprocess.Popen[bytes], home: Path) -> None:
    """No fault."""


def kill_the_process(cluster: Cluster, running: subprocess.Popen[bytes], home: Path) -> None:
    processes(home, "evaluate@base")[0].kill()


def kill_the_node(cluster: Cluster, running: subprocess.Popen[bytes], home: Path) -> None:
    """The node that computes, with its slurmd and all that it started. It comes back."""
    name = cluster.run("squeue", "-h", "-t", "R", "-o", "%N").split()[0]
    victims = [p for p in psutil.process_iter(["name", "cmdline"]) if p.info["name"] == "slurmstepd"]
    below = [child for step in victims for child in step.children(recursive=True)]
    for process in [*victims, *below]:
        with suppress(psutil.Error):
            process.kill()
    cluster.stop(f"slurmd.{name}.pid")
    cluster.node(name)


def kill_the_driver(cluster: Cluster, running: subprocess.Popen[bytes], home: Path) -> None:
    running.kill()
    running.wait(timeout=60)


def terminate_the_driver(cluster: Cluster, running: subprocess.Popen[bytes], home: Path) -> None:
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=120) == 75
    assert not cluster.run("squeue", "-h").strip(), "it has cancelled its job"
    until(lambda: not processes(home, ""), 60)


SAID = {
    nothing: "", kill_the_process: "starts evaluate@base again, because: Rank 0 on machine 1 of 1 ended by signal SIGKILL",
    kill_the_node: "starts evaluate@base again, because:", kill_the_driver: "goes on with job loam:evaluate@base:", terminate_the_driver: "",
}  # fmt: skip


@contextmanager
def ended(running: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Ends what runs after the block."""
    try:
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=300)


@pytest.mark.parametrize("fault", SAID)
def test_an_evaluation_on_a_node_has_the_digest_of_a_local_one(
    trained: Path, expected: dict[str, tuple[str, str]], cluster: Cluster, tmp_path: Path,
    fault: Callable[[Cluster, subprocess.Popen[bytes], Path], None],
) -> None:  # fmt: skip
    home = tmp_path / "home"
    shutil.copytree(trained, home, symlinks=True)
    running = [started(ON_SLURM, home, variables=cluster.environment)]
    with ended(running):
        until(lambda: running[0].poll() is not None or [*home.glob("scratch/evaluate@base-*/work/answers.jsonl")], 600)
        if fault is not nothing:
            assert running[0].poll() is None, said(home)
        fault(cluster, running[0], home)
        if fault in (kill_the_driver, terminate_the_driver):
            running.append(started(ON_SLURM, home, variables=cluster.environment))
        assert running[-1].wait(timeout=900) == 0, said(home)
    assert built(home) == expected
    lines = said(home)
    assert SAID[fault] in lines and "job loam:export@base:" in lines
    submitted = [line for line in lines.splitlines() if " job loam:evaluate@base:" in line and "of Slurm: one node with a rank" in line]
    assert len(submitted) == (1 if fault in (nothing, kill_the_driver) else 2), lines
    (found,) = (json.loads(path.read_text()) for path in home.glob("artifacts/evaluate@base/*/manifest.json"))
    assert found["runtime"]["launcher"] == "slurm" and ("usage" in found) == (fault in (nothing, kill_the_process, kill_the_node))
    assert not cluster.run("squeue", "-h").strip() and not processes(home, "") and os.path.isdir(home)
    until(lambda: cluster.states() <= {"idle"}, 120)
