"""Starts the ranks of a job as processes, passes on their events, and ends all of them.

Guarantee: the ranks stay in the caller's process group and ignore SIGINT and SIGTERM; the caller receives these signals and decides. The
ranks die with the caller (PR_SET_PDEATHSIG, set in the rank). When one rank fails, or all hang, the others are killed at once. When the
caller ends because of SIGTERM, the ranks finish their step and save a snapshot before; a second SIGTERM or the end of the grace period ends
them at once. The caller gets every event of every rank, in order per rank.
Cost: reads small files every POLL_S seconds (five times per second).

In a hang every rank stands still: one cannot go on, and the others wait for it in a collective. So the beats of all ranks together are
watched, and a rank that waits is not taken for one that hangs.
Only time in which the launcher itself looked counts. A job that was suspended with its launcher (Ctrl-Z) is not ended for it.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from stages.record.processes import free_port
from stages.training.job.job import RankJob, write_job
from stages.training.launch.events import OS_ERROR_EXIT, EventTail, RankEvent, RankFailed, StepDone, event_path
from stages.training.launch.heartbeat import Beat, heartbeat_path, read_beat
from stages.training.launch.stop_request import request_stop, withdraw_stop

POLL_S = 0.2
STACKS_S = 1.0
TAIL_LINES = 15
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class LaunchError(RuntimeError):
    """A rank failed. The message is the rank's own error, or the end of its output.

    Attributes:
        sequences: Sequences of a batch that cannot be trained.
    """

    def __init__(self, message: str, sequences: Sequence[int] = ()) -> None:
        """Creates the error from its message and the sequences of the batch."""
        super().__init__(message)
        self.sequences = list(sequences)


@dataclass
class RankErrors:
    """The error events of the ranks.

    Attributes:
        errors: rank -> text.
        sequences: Sequences that the errors name.
        naming: The first error that names sequences; empty without one. It tells more than that of a rank that only took part in the sum.
        system: Number and file of an operating-system error; None without one.
    """

    errors: dict[int, str] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)
    naming: str = ""
    system: tuple[int, str] | None = None

    def add(self, rank: int, event: RankFailed) -> None:
        """Records the error event of a rank."""
        self.errors[rank] = event.text
        self.sequences.extend(event.sequences)
        if event.sequences:
            self.naming = self.naming or event.text
        if event.number:
            self.system = event.number, event.file


@dataclass
class RankGroup:
    """The running ranks of one job.

    Attributes:
        scratch: Folder of their files.
        listen: Called as listen(rank, event) for every event.
        processes: The ranks' processes, by rank.
        tails: The ranks' events, by rank.
        errors: What the ranks said about their errors.
        steps: Training steps that the ranks finished since they were started.
    """

    scratch: Path
    listen: Callable[[int, RankEvent], None]
    processes: list[subprocess.Popen[bytes]]
    tails: list[EventTail]
    errors: RankErrors = field(default_factory=RankErrors)
    steps: int = 0

    def pass_on(self) -> None:
        """Passes on the events since the last call."""
        for rank, tail in enumerate(self.tails):
            for event in tail.read():
                if isinstance(event, RankFailed):
                    self.errors.add(rank, event)
                self.steps += isinstance(event, StepDone)
                self.listen(rank, event)

    def wait(self, stall_limit_s: float) -> list[int | None]:
        """Returns the exit codes when all ranks have ended or one has failed.

        Raises:
            LaunchError: No rank made progress for stall_limit_s seconds.
        """
        watch = StallWatch(stall_limit_s)
        while True:
            codes = [process.poll() for process in self.processes]
            self.pass_on()
            if any(code not in (None, 0) for code in codes) or all(code == 0 for code in codes):
                return codes
            beats = [read_beat(heartbeat_path(self.scratch, rank)) for rank in range(len(codes))]
            if watch.look(beats, time.monotonic()):
                states = [process_state(process.pid) for process in self.processes]
                self.write_stacks()
                raise LaunchError(
                    f"{stall_text(beats, states, stall_limit_s)} The stacks of the ranks are in their output. "
                    "If a rank only needs longer, raise runtime.stall_limit_s."
                )
            time.sleep(POLL_S)

    def leave(self, error: BaseException | None, grace_s: float) -> None:
        """If the error is an end by SIGTERM and a step was made, asks the ranks to save a snapshot after their step, and waits for it.

        It waits until they have ended, one has failed, or grace_s seconds have passed.
        """
        if error is None or not _is_termination(error) or not self.steps:
            return
        request_stop(self.scratch)
        end = time.monotonic() + grace_s
        while time.monotonic() < end:
            codes = [process.poll() for process in self.processes]
            self.pass_on()
            if None not in codes or any(codes):
                return
            time.sleep(POLL_S)

    def write_stacks(self) -> None:
        """Makes every rank that can write the stacks of its threads into its output."""
        for process in self.processes:
            process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_S)


def launch(job: RankJob, listen: Callable[[int, RankEvent], None], variables: Mapping[str, str]) -> None:
    """Runs the job until all ranks have ended. A rank that fails raises LaunchError, or OSError if a disk is full or read-only.

    Args:
        job: The job. Its scratch folder gets job.json, the event files, the heartbeats and the output of the ranks.
        listen: Called as listen(rank, event) for every event.
        variables: Environment of the ranks; `environment` is added to it. It must not contain credentials, because the output of a rank is
            kept unchanged.

    If a signal handler of the caller raises because of SIGTERM, the ranks first get time for a snapshot (see `RankGroup.leave`).
    """
    scratch = Path(job.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    path = write_job(job, scratch / "job.json")
    port = free_port()
    ranks = range(job.machine.ranks)
    withdraw_stop(scratch)
    for rank in ranks:
        event_path(scratch, rank).unlink(missing_ok=True)
        heartbeat_path(scratch, rank).unlink(missing_ok=True)
    group = RankGroup(scratch, listen, [], [EventTail(event_path(scratch, rank)) for rank in ranks])
    with ExitStack() as stack:
        stack.callback(kill, group.processes)
        stack.push(lambda kind, error, trace: group.leave(error, job.machine.stop_grace_s))
        for rank in ranks:
            output = stack.enter_context((scratch / f"rank-{rank}.log").open("wb"))
            command = [sys.executable, "-m", "stages.training.loop.rank", str(path), str(os.getpid())]
            settings = {
                **environment(rank, len(ranks), port, job.machine.device),
                **compiler(job.machine.kernels if job.compiles() else ""),
            }
            own = {**variables, **settings, "PYTHONPATH": _python_path()}
            group.processes.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT))
        codes = group.wait(job.machine.stall_limit_s)
        if all(code == 0 for code in codes):
            return
        time.sleep(POLL_S)
        group.pass_on()
    error = _failure(scratch, group.errors, codes)
    raise error


def _is_termination(error: BaseException) -> bool:
    """Returns whether a signal handler raised the error because of SIGTERM. That of SIGINT raises KeyboardInterrupt.

    Prefect's handler raises TerminationSignal, `loam` raises TerminatedError, and many programs raise SystemExit. All are no Exception.
    """
    return not isinstance(error, Exception | KeyboardInterrupt)


def environment(rank: int, ranks: int, port: int, device: str) -> dict[str, str]:
    """Returns the environment variables that a rank needs before it imports torch and DeepSpeed."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DS_ACCELERATOR": device, "OMP_NUM_THREADS": threads,
        "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def compiler(kernels: str) -> dict[str, str]:
    """Returns the environment variables of torch's compiler.

    Args:
        kernels: Folder of compiled kernels. Empty turns the compiler off: else DeepSpeed's Muon loads it, 1.7 s of CPU time per rank.
    """
    return {"TORCHINDUCTOR_CACHE_DIR": kernels} if kernels else {"TORCHDYNAMO_DISABLE": "1"}


def kill(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends the processes that still run, by SIGKILL: a rank keeps nothing that a snapshot does not have, and SIGTERM is not for it."""
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def _python_path() -> str:
    root = str(Path(__file__).resolve().parents[3])
    rest = os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{rest}" if rest else root


def _failure(scratch: Path, found: RankErrors, codes: Sequence[int | None]) -> Exception:
    """Returns the error to raise. A full disk has priority over the errors of other ranks, which only lost the connection to that rank."""
    by_code = next((code - OS_ERROR_EXIT for code in codes if code is not None and OS_ERROR_EXIT < code < OS_ERROR_EXIT + 128), 0)
    number, file = found.system or (by_code, "")
    if number in OF_THE_DISK:
        return OSError(number, os.strerror(number), file or str(scratch))
    failed = next(rank for rank, code in enumerate(codes) if code not in (None, 0))
    if found.errors:
        return LaunchError(found.naming or found.errors.get(failed, next(iter(found.errors.values()))), found.sequences)
    if by_code:
        return LaunchError(f"A training rank cannot continue: {os.strerror(by_code)}.")
    code, lines = codes[failed], (scratch / f"rank-{failed}.log").read_text(errors="replace", encoding="utf-8").splitlines()[-TAIL_LINES:]
    ended = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
    return LaunchError(f"Training rank {failed} ended {ended}." + ("\n" + "\n".join(lines) if lines else ""))


LONGEST_LOOK_S = 2.0  # ten times the launcher's pause: a longer gap is one in which the launcher did not run
NAMED_RANKS = 8
HELD: Mapping[str, str] = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for a disk"}
"""States of a process in which it does nothing, as in proc(5), in words."""


@dataclass
class StallWatch:
    """Adds up how long no rank went on.

    Attributes:
        limit_s: Seconds without a beat of any rank after which the ranks hang.
    """

    limit_s: float
    counts: list[int] = field(default_factory=list)
    still_s: float = 0.0
    looked: float | None = None

    def look(self, beats: Sequence[Beat], now: float) -> bool:
        """Returns whether the ranks hang.

        Args:
            beats: The newest beat of every rank.
            now: Seconds of a monotonic clock.
        """
        counts = [beat.count for beat in beats]
        passed = 0.0 if self.looked is None else min(now - self.looked, LONGEST_LOOK_S)
        self.still_s = self.still_s + passed if counts == self.counts else 0.0
        self.counts, self.looked = counts, now
        return self.still_s >= self.limit_s


def process_state(pid: int) -> str:
    """Returns the letter of a process's state as in proc(5); empty where the system does not tell it."""
    if sys.platform != "linux":
        return ""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def stall_text(beats: Sequence[Beat], states: Sequence[str], limit_s: float) -> str:
    """Returns what to say about a hang: which rank is behind, and in what.

    A rank whose process is held by the system is behind, because it cannot go on. Without such a rank, those at the earliest place are.

    Args:
        beats: The newest beat of every rank.
        states: The state of every rank's process (`process_state`).
        limit_s: The limit that was exceeded.
    """
    first = min(beat.place for beat in beats)
    behind = [rank for rank, state in enumerate(states) if state in HELD] or [r for r, beat in enumerate(beats) if beat.place == first]
    said = f"No rank made progress for {limit_s:g} s"
    if len(behind) == len(beats) > 1 and not any(state in HELD for state in states):
        return f"{said}; all ranks are at the same place: {_place(beats[0])}."
    named = [f"rank {rank} is behind: {_place(beats[rank])}{_held(states[rank])}" for rank in behind[:NAMED_RANKS]]
    more = f"; {len(behind) - NAMED_RANKS} more" if len(behind) > NAMED_RANKS else ""
    return f"{said}; {'; '.join(named)}{more}."


def _place(beat: Beat) -> str:
    return f"step {beat.step}, {beat.activity}" if beat.step else str(beat.activity)


def _held(state: str) -> str:
    return f", and its process is {HELD[state]}" if state in HELD else ""
