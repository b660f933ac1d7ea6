"""Prefect server and worker for real: a deployment's run is cancelled, its process killed, its worker killed, all of it killed.

Each time the process table is looked at: nothing works on, nothing is held, the run's record says what happened, and the same
deployment started again goes on from the last snapshot and finishes. What becomes of a flow whose worker dies: it ends with
it, as if it had been cancelled, since nobody could see or stop it any more.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from stages.record.processes import free_port
from stages.record.store import lease, runs
from tests.chaos.pipeline import MARK, SETTINGS, alive, held, processes, shared_environment, wait_until_gone
from tests.conftest import PROJECT
from tests.served import ask, client_environment

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

GONE_WITHIN_S = 10
LONGER = SETTINGS | {"pretrain.budget.steps": "500", "pretrain.checkpoint_every_steps": "20", "pretrain.eval_every_steps": "250"}


@dataclass(frozen=True)
class Serve:
    """A running `loam serve`, what clients need, and where its work goes."""

    process: subprocess.Popen[str]
    environment: dict[str, str]
    home: Path
    mark: str

    def ask(self, path: str, **body: Any) -> Any:
        return ask(self.home, "POST", path, body)

    def state(self, run: str) -> dict[str, Any]:
        return self.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})[0]["state"]

    def lines(self, run: str) -> list[str]:
        return [entry["message"] for entry in self.ask("logs/filter", logs={"flow_run_id": {"any_": [run]}}, limit=200)]


@contextmanager
def serving(home: Path, mark: str) -> Iterator[Serve]:
    """`loam serve` on a free port until the block ends; everything it started is gone afterwards."""
    port = free_port()
    command = [sys.executable, "-m", "flows.cli", "serve", "--port", str(port), "--home", str(home)]
    environment = shared_environment() | {MARK: mark}
    with (home.parent / "serve.txt").open("w") as errors:
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    assert any("prefect deployment run" in line for line in process.stdout), (home.parent / "serve.txt").read_text()
    yield Serve(process, client_environment(home) | {MARK: mark}, home, mark)
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    process.wait(timeout=60)
    assert not wait_until_gone(mark, GONE_WITHIN_S)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefect") / "home"


@pytest.fixture
def serve(home: Path, mark: str) -> Iterator[Serve]:
    with serving(home, mark) as running:
        yield running


def begin(serve: Serve, until: str, **settings: str) -> str:
    """Starts a run of the deployment pretrain/tiny on the small pipeline; returns the id of the flow run."""
    text = shlex.join(f"{key}={value}" for key, value in (LONGER | {k.replace("__", "."): v for k, v in settings.items()}).items())
    command = [sys.executable, "-m", "prefect", "deployment", "run", "pretrain/tiny", "-p", f"set={text}", "-p", f"until={until}"]
    done = subprocess.run(command, env=serve.environment, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "UUID" in done.stdout, done.stdout
    return next(line.split()[-1] for line in done.stdout.splitlines() if "UUID" in line)


def below(run: str) -> list[psutil.Process]:
    """The flow's process and everything it started: they inherit the id of the flow run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def of(found: list[psutil.Process], what: str) -> list[psutil.Process]:
    """Those processes whose command names something. One that has ended in the meantime is none of them."""
    named = []
    for process in found:
        try:
            if what in " ".join(process.cmdline()):
                named.append(process)
        except psutil.NoSuchProcess:
            continue
    return named


def wait_for(what: str, true: Callable[[], Any], within_s: float = 600) -> float:
    """Waits until something is true; returns how long that took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_s, f"{what} did not happen in {within_s:.0f} s"
        time.sleep(0.1)
    return time.monotonic() - began


def in_mid_training(serve: Serve, run: str) -> list[psutil.Process]:
    """Waits until a first snapshot stands and the ranks train on; returns the processes of the run."""
    wait_for("the ranks", lambda: len(of(below(run), "stages.training.loop.rank")) == 2)
    (key,) = [path.name for path in (serve.home / "leases").iterdir() if lease.held_by(path)]
    wait_for("a snapshot", lambda: list(serve.home.glob(f"scratch/{key}/work/**/resume/*/checkpoint.json")))
    found = below(run)
    assert len(of(found, "stages.training.loop.rank")) == 2 and key.startswith("pretrain-")
    return found


def all_gone(found: list[psutil.Process], within_s: float = GONE_WITHIN_S) -> float:
    """Waits until none of the processes lives; returns how long that took."""
    began = time.monotonic()
    while (left := [process for process in found if alive(process)]) and time.monotonic() - began < within_s:
        time.sleep(0.1)
    assert not left, [process.cmdline() for process in left]
    return time.monotonic() - began


def newest(home: Path) -> dict[str, Any]:
    """The newest run's record."""
    return max((runs.read_run(home, run_id) for run_id in runs.run_ids(home)), key=lambda record: record["seq"])


def goes_on(serve: Serve, until: str, **settings: str) -> None:
    """The same deployment again: from the last snapshot to the end."""
    run = begin(serve, until, **settings)
    wait_for("the end of the rerun", lambda: serve.state(run)["type"] in ("COMPLETED", "FAILED", "CRASHED"))
    assert serve.state(run)["type"] == "COMPLETED", (serve.state(run), serve.lines(run)[-10:])
    if until == "pretrain":
        assert [line for line in serve.lines(run) if "continues from step" in line], serve.lines(run)
    assert newest(serve.home)["state"] == "done" and not held(serve.home)


def test_cancelling_in_mid_training_ends_every_child(serve: Serve) -> None:
    change = {"pretrain__learning_rate": "0.0061"}
    run = begin(serve, "pretrain", **change)
    found = in_mid_training(serve, run)
    cancel = [sys.executable, "-m", "prefect", "flow-run", "cancel", run]
    subprocess.run(cancel, env=serve.environment, cwd=PROJECT, capture_output=True, check=True)
    took = all_gone(found)
    print(f"\ncancelled: all gone after {took:.1f} s")
    wait_for("the state Cancelled", lambda: serve.state(run)["type"] == "CANCELLED", 30)
    assert not held(serve.home)
    record = newest(serve.home)
    assert record["state"] == "interrupted" and record["nodes"][-1]["node"] == "pretrain" and record["nodes"][-1]["state"] == "interrupted"
    goes_on(serve, "pretrain", **change)


def test_a_killed_flow_process_takes_its_ranks_along_and_frees_what_it_held(serve: Serve) -> None:
    change = {"pretrain__learning_rate": "0.0062"}
    run = begin(serve, "pretrain", **change)
    found = in_mid_training(serve, run)
    (flow,) = of(found, "prefect.engine")
    flow.kill()
    took = all_gone(found)
    print(f"\nflow process killed: all gone after {took:.1f} s")
    assert not held(serve.home), "the lease is free at once"
    assert newest(serve.home)["state"] == "killed"
    wait_for("the state Crashed", lambda: serve.state(run)["type"] == "CRASHED", 60)
    goes_on(serve, "pretrain", **change)


def test_a_flow_process_killed_in_a_data_stage_takes_its_workers_along(serve: Serve) -> None:
    change = {"filter__min_lang_score": "0.31"}
    run = begin(serve, "filter", **change)
    wait_for("shards of filter", lambda: list(serve.home.glob("scratch/filter-*/work/filter/*.partial")))
    found = below(run)
    workers = of(found, "multiprocessing.spawn")
    assert len(workers) == 2
    (flow,) = of(found, "prefect.engine")
    flow.kill()
    took = all_gone(found)
    print(f"\nflow process killed in filter: all gone after {took:.1f} s")
    written = {path: path.stat().st_mtime_ns for path in serve.home.glob("scratch/filter-*/**/*")}
    time.sleep(1)
    assert {path: path.stat().st_mtime_ns for path in serve.home.glob("scratch/filter-*/**/*")} == written, "somebody writes on"
    goes_on(serve, "filter", **change)


def test_a_killed_worker_takes_its_flow_along(home: Path, mark: str) -> None:
    """The flow ends as if cancelled, `loam serve` says that its worker ended, and the next one goes on."""
    change = {"pretrain__learning_rate": "0.0063"}
    with serving(home, mark) as serve:
        run = begin(serve, "pretrain", **change)
        found = in_mid_training(serve, run)
        (worker,) = of(processes(mark), "worker start")
        worker.kill()
        took = all_gone(found, 2 * GONE_WITHIN_S)  # the flow still reports its end to the server
        print(f"\nworker killed: its flow gone after {took:.1f} s")
        assert not held(home) and newest(home)["state"] == "interrupted"
        assert serve.process.wait(timeout=60) == 1
        assert "ended by itself, with exit code" in (home.parent / "serve.txt").read_text()
    with serving(home, mark) as serve:
        goes_on(serve, "pretrain", **change)


def test_a_killed_serve_leaves_nothing_running(home: Path, mark: str) -> None:
    change = {"pretrain__learning_rate": "0.0064"}
    with serving(home, mark) as serve:
        run = begin(serve, "pretrain", **change)
        found = in_mid_training(serve, run)
        serve.process.kill()
        began = time.monotonic()
        print(f"\nloam serve killed: ranks gone after {all_gone(of(found, 'stages.training.loop.rank')):.1f} s")
        wait_for("the end of the lease", lambda: not held(home), GONE_WITHIN_S)  # the flow's process ends after its ranks
        assert not wait_until_gone(mark, 3 * GONE_WITHIN_S), "the flow gives up reporting to a server that is no more"
        print(f"all gone after {time.monotonic() - began:.1f} s")
    with serving(home, mark) as serve:
        goes_on(serve, "pretrain", **change)


def test_stopping_serve_in_mid_training_ends_its_flow_first(home: Path, mark: str) -> None:
    change = {"pretrain__learning_rate": "0.0065"}
    with serving(home, mark) as serve:
        run = begin(serve, "pretrain", **change)
        in_mid_training(serve, run)
        os.kill(serve.process.pid, signal.SIGINT)
        assert serve.process.wait(timeout=60) == 0
        assert not below(run) and not processes(mark), "nothing is left when `loam serve` has ended"
        assert newest(home)["state"] == "interrupted"
