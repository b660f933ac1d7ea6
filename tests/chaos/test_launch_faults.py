"""Ranks that hang are named and ended; ranks whose launcher gets SIGTERM save a snapshot, and the next start ends with the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from stages.training.checkpoints import checkpoint
from stages.training.job.job import Machine, RankJob, write_job
from stages.training.launch.events import EventTail, Logged, RankEvent, StepDone, event_path
from stages.training.launch.launch import LaunchError, _is_termination, launch
from stages.training.launch.stop_request import request_stop, stop_path, stop_requested, withdraw_stop
from stages.training.loop import training_loop
from stages.training.measures.metrics import read_metrics
from tests.conftest import PROJECT, until
from tests.training import plain
from tests.training.made import changed, small_job

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

STEPS = 120
LIMIT_S = 30  # more than the start of the ranks takes on a busy machine
LAUNCHER = """
import os, signal, sys
from pathlib import Path
from stages.training.launch.events import StepDone
from stages.training.job.job import read_job
from stages.training.launch.launch import launch

def terminated(number, frame):
    raise SystemExit(75)

def listen(rank, event):
    if isinstance(event, StepDone):
        print(event.step, flush=True)

signal.signal(signal.SIGTERM, terminated)
launch(read_job(Path(sys.argv[1])), listen, dict(os.environ))
"""


@pytest.fixture
def endless(tmp_path: Path) -> RankJob:
    """Returns a job of two ranks that would train for hours."""
    return small_job(tmp_path, Machine(2, "cpu", 2, 32), steps=1_000_000)


def ranks_below(pid: int) -> dict[int, psutil.Process]:
    """Returns the training ranks that a process started, by rank."""
    found = [c for c in psutil.Process(pid).children() if "stages.training.loop.rank" in " ".join(c.cmdline())]
    return {int(process.environ()["RANK"]): process for process in found}


class StoppingRank:
    """Suspends a rank after some steps."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0

    def __call__(self, rank: int, event: RankEvent) -> None:
        if isinstance(event, StepDone) and event.step >= 3 and not self.step:
            self.step = event.step
            ranks_below(os.getpid())[self.rank].suspend()


def test_a_rank_that_is_stopped_is_named_and_all_are_ended(endless: RankJob) -> None:
    job = replace(endless, machine=replace(endless.machine, stall_limit_s=LIMIT_S))
    stopping = StoppingRank(1)
    with pytest.raises(LaunchError) as caught:
        launch(job, stopping, os.environ)
    found = str(caught.value)
    assert found.startswith(f"No rank made progress for {LIMIT_S} s; rank 1 is behind: step ") and stopping.step >= 3
    assert "and its process is stopped by a signal. The stacks of the ranks are in their output." in found
    assert found.endswith("If a rank only needs longer, raise runtime.stall_limit_s.") and "rank 0" not in found
    assert "Current thread" in (Path(job.scratch) / "rank-0.log").read_text(), "where the other one waits"
    assert not ranks_below(os.getpid())


STUCK = """
import os, time

if os.environ.get("RANK") == "1":
    from stages.training.data.reader import SequenceReader

    batch, calls = SequenceReader.batch, []

    def stuck(*given):
        calls.append(1)
        if len(calls) > 4:
            time.sleep(1000)
        return batch(*given)

    SequenceReader.batch = stuck
"""


def test_a_rank_that_does_not_come_back_from_reading_is_named(endless: RankJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process runs; only its place shows that the other rank waits for it."""
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{PROJECT}")
    job = replace(endless, machine=replace(endless.machine, stall_limit_s=LIMIT_S))
    with pytest.raises(LaunchError, match=rf"for {LIMIT_S} s; rank 1 is behind: step 5, reading of sequences\. The stacks"):
        launch(job, lambda rank, event: None, os.environ)
    assert "stuck" in (Path(job.scratch) / "rank-1.log").read_text()


class Launcher:
    """A process that runs a job, in a process group of its own."""

    def __init__(self, job: RankJob, path: Path) -> None:
        command = [sys.executable, "-c", LAUNCHER, str(write_job(job, path))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT, start_new_session=True)

    def wait_for_step(self, step: int) -> None:
        assert self.process.stdout is not None
        while int(self.process.stdout.readline()) < step:
            assert self.process.poll() is None

    def ranks(self) -> dict[int, psutil.Process]:
        return ranks_below(self.process.pid)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[RankJob], Launcher]]:
    """Starts launchers, and ends what is left of them."""
    all_started: list[Launcher] = []

    def start(job: RankJob) -> Launcher:
        all_started.append(Launcher(job, tmp_path / "outer.json"))
        return all_started[-1]

    yield start
    for launcher in all_started:
        launcher.process.kill()
        launcher.process.wait(timeout=60)


def short(folder: Path) -> RankJob:
    """Returns a job that saves a snapshot only at its end, with evaluations."""
    folder.mkdir()
    made = small_job(folder, Machine(2, "cpu", 2, 2), STEPS)
    return replace(changed(made, eval_every_steps=10), validation=made.train)


def results(job: RankJob) -> tuple[dict[str, torch.Tensor], list[tuple[Any, ...]]]:
    """Returns the weights, and the metrics without clock values."""
    lines = read_metrics(Path(job.scratch) / "metrics.jsonl")
    curve = [(line["step"], line.get("loss"), line.get("grad_norm"), line.get("validation_loss")) for line in lines]
    return checkpoint.consolidate(Path(job.out) / "checkpoint"), curve


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], list[tuple[Any, ...]]]:
    job = short(tmp_path_factory.mktemp("whole") / "job")
    launch(job, lambda rank, event: None, os.environ)
    return results(job)


@pytest.mark.parametrize("group", [False, True], ids=["launcher", "group"])
def test_sigterm_saves_a_snapshot_from_which_the_next_start_ends_with_the_same_weights(
    whole: tuple[dict[str, torch.Tensor], list[tuple[Any, ...]]], started: Callable[[RankJob], Launcher], tmp_path: Path, group: bool
) -> None:
    """A batch system signals the first process or the whole group."""
    job = short(tmp_path / "job")
    launcher = started(job)
    launcher.wait_for_step(20)
    ranks = list(launcher.ranks().values())
    (os.killpg if group else os.kill)(launcher.process.pid, signal.SIGTERM)
    assert launcher.process.wait(timeout=60) == 75 and len(ranks) == 2 and not any(rank.is_running() for rank in ranks)
    (snapshot,) = (Path(job.scratch) / "resume").iterdir()
    step = checkpoint.verify(snapshot).step
    assert 20 <= step < STEPS and snapshot.name == f"step-{step:010d}" and not Path(job.out).exists()
    assert [line["step"] for line in read_metrics(Path(job.scratch) / "metrics.jsonl")][-1] == step
    heard: list[RankEvent] = []
    launch(job, lambda rank, event: heard.append(event), os.environ)
    assert next(event.step for event in heard if isinstance(event, StepDone)) == step + 1, "the request of before is withdrawn"
    weights, curve = results(job)
    assert curve == whole[1] and weights.keys() == whole[0].keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole[0].items())


@pytest.mark.parametrize(("grace_s", "signals"), [(300, 2), (1, 1)], ids=["second signal", "end of the grace period"])
def test_ranks_that_cannot_finish_their_step_are_ended(
    endless: RankJob, started: Callable[[RankJob], Launcher], grace_s: int, signals: int
) -> None:
    job = replace(endless, machine=replace(endless.machine, stop_grace_s=grace_s))
    launcher = started(job)
    launcher.wait_for_step(3)
    ranks = list(launcher.ranks().values())
    for rank in ranks:
        rank.suspend()
    launcher.process.send_signal(signal.SIGTERM)
    until(lambda: stop_requested(Path(job.scratch)))
    if signals == 2:
        assert launcher.process.poll() is None
        launcher.process.send_signal(signal.SIGTERM)
    assert launcher.process.wait(timeout=60) == 75 and not any(rank.is_running() for rank in ranks)
    assert not list(Path(job.scratch).glob("resume/*"))


def test_before_the_first_step_there_is_nothing_to_wait_for(endless: RankJob, started: Callable[[RankJob], Launcher]) -> None:
    launcher = started(endless)
    until(lambda: len(list(Path(endless.scratch).glob("rank-*.log"))) == 2)
    ranks = list(launcher.ranks().values())
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.process.wait(timeout=60) == 75
    # A rank that is starting just then is not among those that the launcher ends. It ends when it sees that its parent is gone.
    assert not psutil.wait_procs(ranks, timeout=60)[1]
    assert not stop_path(Path(endless.scratch)).exists()


def test_the_signals_of_a_terminal_and_of_a_batch_system_do_not_end_a_rank(
    endless: RankJob, started: Callable[[RankJob], Launcher]
) -> None:
    launcher = started(endless)
    launcher.wait_for_step(2)
    for rank in launcher.ranks().values():
        for number in (signal.SIGTERM, signal.SIGINT):
            rank.send_signal(number)
    launcher.wait_for_step(10)
    assert len(launcher.ranks()) == 2


def test_only_what_a_handler_of_sigterm_raises_is_a_termination() -> None:
    """Ctrl-C ends the ranks at once, and so does an error of the caller, such as a full disk."""

    class TerminationSignal(BaseException):
        """Stands for Prefect's."""

    assert _is_termination(TerminationSignal()) and _is_termination(SystemExit(1))
    assert not _is_termination(KeyboardInterrupt()) and not _is_termination(OSError(28, "full"))


@pytest.mark.parametrize(("at", "saved"), [(3, [3]), (4, [4]), (6, [6]), (0, [6])])
def test_a_stop_is_a_snapshot_after_the_step_and_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, saved: list[int]
) -> None:
    """At the last step the snapshot is there anyway. 0: nobody asks."""
    made = small_job(tmp_path, Machine(1, "cpu", 2, 2), 6)
    job = replace(changed(made, eval_every_steps=3), validation=made.train)
    step_of = training_loop.train_step

    def asked(run: training_loop.Run, step: int) -> Any:
        if step + 1 == at:
            request_stop(Path(run.job.scratch))
        return step_of(run, step)

    monkeypatch.setattr(training_loop, "train_step", asked)
    found = plain.run(job, tmp_path / "run", monkeypatch)
    assert found.saved == saved and found.lines[-1]["step"] == saved[-1]
    assert [step for step, _ in found.evaluations] == [step for step in (0, 3, 6) if step <= saved[-1]]
    logged = [
        event.text
        for event in EventTail(event_path(tmp_path / "run", 0)).read()
        if isinstance(event, Logged) and "peak of" not in event.text
    ]
    assert logged == ([f"stops after step {at}, with a snapshot"] if 0 < at < 6 else [])
    withdraw_stop(tmp_path / "run")
    assert not stop_requested(tmp_path / "run")
