"""Runs the shards of a stage as arrays of jobs of a Slurm cluster. The home must be on a file system that its nodes share.

A submission is an array of elements, each a process that makes its part of the shards (worker.py). What is missing when an array has ended is
submitted again, up to SUBMISSIONS times in all, because Slurm does not requeue an element that was killed. Then the shard that is missing is named.
Guarantee: the files are those of the local engine. A driver that dies and starts again waits for the array that it had submitted. One that is
stopped (Ctrl-C, SIGTERM) cancels it.
Cost: one listing of the folder and one `squeue` every POLL_S seconds.
Source: https://slurm.schedmd.com/job_array.html. datatrove's SlurmPipelineExecutor was tried: its attempts share their files, and it does not
submit again what was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.record.contract import errors
from stages.record.contract.environment import all_packages
from stages.record.contract.errors import LoamError, RecipeError, StageError
from stages.record.contract.runtime import Runtime, SlurmRequest
from stages.record.contract.source_code import PROJECT, code_digest
from stages.record.engines.local import NOW
from stages.record.engines.worker import FAILED, Bundle
from stages.record.store.files import fsync, write_durably

if TYPE_CHECKING:
    from stages.record.contract.declaration import Context
    from stages.record.tables.shards import ShardJob

POLL_S = 2.0
SUBMISSIONS = 3
UNKNOWN_S = 600.0
"""How long Slurm's controller may not answer before the stage ends; a restart of it takes seconds."""
STATE = "slurm.json"  # which array makes the shards of a folder; an earlier driver wrote it
TOOLS = ("sbatch", "squeue", "scancel", "sinfo")


def refuse_unfit_slurm(runtime: Runtime) -> None:
    """Checks, before any work, that this machine can submit what the recipe asks for.

    Raises:
        RecipeError: A command of Slurm is missing, its controller does not answer, or it has no such partition.
    """
    if runtime.engine != "slurm":
        return
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        raise RecipeError(
            f"runtime.engine is slurm, but this machine has no {missing[0]}.",
            where="runtime.engine",
            do="Run it on a login node of the cluster, or set runtime.engine=local.",
        )
    asked = _call(["sinfo", "--noheader", "--format=%R"])
    if asked.returncode:
        raise RecipeError(f"Slurm does not answer: {_last(asked.stderr)}", where="runtime.engine", do="Ask `sinfo`; then run it again.")
    partitions = sorted(set(asked.stdout.split()))
    if unknown := [name for name in runtime.slurm.partition.split(",") if name and name not in partitions]:
        do = f"The partitions are: {', '.join(partitions)}."
        raise RecipeError(f"Slurm has no partition {unknown[0]!r}.", where="runtime.slurm.partition", do=do)


def request_text(asked: SlurmRequest) -> str:
    """Returns what is asked of Slurm, for a plan."""
    given = [
        f"partition {asked.partition or '(default)'}", *([f"account {asked.account}"] if asked.account else ()), f"{asked.cores} cores",
        f"{asked.memory_mb:,} MB" if asked.memory_mb else "default memory", f"{asked.time_min:,} min" if asked.time_min else "default time",
    ]  # fmt: skip
    at_once = f", {asked.at_once:,} at once" if asked.at_once else ""
    return f"arrays of at most {asked.elements:,} elements{at_once}; each: {', '.join(given)}"


def run_on_slurm(jobs: Sequence[ShardJob[Any, Any]], root: Path, ctx: Context, label: str) -> None:
    """Makes the shards that are missing.

    Args:
        jobs: The shards.
        root: The folder of their folders, on a file system that the nodes share.
        ctx: The stage's context: its runtime has what is asked for.
        label: What is being made, for messages.

    A shard that fails, or that is missing after the last submission, ends in a StageError.
    """
    by_number = {int(job.folder.name): job for job in jobs}
    job_id = _submitted_before(root)
    for submission in range(SUBMISSIONS):
        missing = {number: job for number, job in by_number.items() if not job.folder.exists()}
        if not missing:
            break
        if job_id:
            ctx.log(f"waits for array {job_id} of Slurm, which an earlier run submitted")
        else:
            job_id, elements = _submit(missing, root, ctx, label, submission)
            ctx.log(
                f"array {job_id} of Slurm: {len(missing):,} shards of {label} in {elements:,} elements; their output is in {_logs(root)}"
            )
        with ExitStack() as stack:
            stack.callback(_call, ["scancel", job_id])
            _await(job_id, missing)
            stack.pop_all()  # it ended by itself
        (root / STATE).unlink(missing_ok=True)
        job_id = ""
        _raise_designed(root, missing)
    _raise_missing([job for job in by_number.values() if not job.folder.exists()], root, label)
    for left in (*root.glob("*.partial"), *root.glob(f"*{FAILED}")):  # of attempts that died or came second
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _submit(missing: dict[int, ShardJob[Any, Any]], root: Path, ctx: Context, label: str, submission: int) -> tuple[str, int]:
    """Returns (id of the array, its elements), after submitting what is missing.

    Raises:
        StageError: Slurm refuses it.
    """
    work = next(iter(missing.values())).work
    module = getattr(work, "func", work).__module__
    data = pickle.dumps(Bundle(missing, module, code_digest(module), all_packages()))
    file = root / f"jobs-{submission}.pickle"
    file.write_bytes(data)
    fsync(file)
    asked, elements = ctx.runtime.slurm, min(len(missing), ctx.runtime.slurm.elements)
    _logs(root).mkdir(exist_ok=True)
    worker = [
        sys.executable, "-m", "stages.record.engines.worker", str(file), "--of", str(elements), "--digest", hashlib.sha256(data).hexdigest(),
    ]  # fmt: skip
    script = (
        "#!/bin/sh\n"
        f"cd {shlex.quote(str(PROJECT))} || exit 1\n"
        f"exec {shlex.join(worker)} --element $SLURM_ARRAY_TASK_ID --attempt s${{SLURM_ARRAY_JOB_ID}}-${{SLURM_ARRAY_TASK_ID}}-${{SLURM_RESTART_COUNT:-0}}\n"
    )
    done = _call(["sbatch", *_options(asked, elements, root, f"loam:{ctx.node}:{label}")], script)
    if done.returncode:
        do = "Correct runtime.slurm; `loam settings runtime` lists it."
        raise StageError(f"Slurm refuses the array of {label}: {_last(done.stderr)}", where="runtime.slurm", do=do)
    job_id = done.stdout.strip().split(";")[0]
    write_durably(root / STATE, json.dumps({"array": job_id}))
    return job_id, elements


def _options(asked: SlurmRequest, elements: int, root: Path, name: str) -> list[str]:
    limit = f"%{asked.at_once}" if asked.at_once else ""
    optional = {
        "partition": asked.partition, "account": asked.account, "mem": f"{asked.memory_mb}M" if asked.memory_mb else "",
        "time": str(asked.time_min or ""),
    }  # fmt: skip
    return [
        "--parsable", "--requeue", "--open-mode=append", "--export=ALL", f"--array=0-{elements - 1}{limit}",
        f"--job-name={name.replace(' ', '_')}", f"--cpus-per-task={asked.cores}", f"--output={_logs(root)}/%A-%a.log",
        *(f"--{option}={value}" for option, value in optional.items() if value),
    ]  # fmt: skip


def _submitted_before(root: Path) -> str:
    """Returns the array that an earlier driver submitted for this folder and that Slurm still has; empty if there is none."""
    try:
        job_id = str(json.loads((root / STATE).read_text(encoding="utf-8"))["array"])
    except (OSError, ValueError, KeyError):
        return ""
    return job_id if _is_active(job_id) else ""


def _await(job_id: str, missing: dict[int, ShardJob[Any, Any]]) -> None:
    """Waits until all shards are there or the array has ended.

    Raises:
        StageError: Slurm's controller does not answer for UNKNOWN_S seconds.
    """
    folders = {job.folder.name for job in missing.values()}
    root, heard = next(iter(missing.values())).folder.parent, time.monotonic()
    while not folders <= set(os.listdir(root)):
        active = _is_active(job_id)
        if active is False:
            return
        heard = time.monotonic() if active else heard
        if time.monotonic() - heard > UNKNOWN_S:
            what = f"Slurm has not said anything about array {job_id} for {UNKNOWN_S:.0f} seconds."
            raise StageError(
                what, where="squeue", do="When it answers again, run the same command: it goes on with the shards that are missing."
            )
        time.sleep(POLL_S)


def _is_active(job_id: str) -> bool | None:
    """Returns whether an element of the array waits or runs; None if Slurm does not answer."""
    done = _call(["squeue", "--noheader", "--format=%i", f"--jobs={job_id}"])
    if done.returncode:
        return False if "Invalid job id" in done.stderr else None
    return bool(done.stdout.strip())


def _raise_designed(root: Path, missing: dict[int, ShardJob[Any, Any]]) -> None:
    """Raises the LoamError of the first shard that ended in one: it says what the user can do, and another attempt would end in it too.

    Raises:
        StageError: A worker refused the jobs.
    """
    for path in sorted(root.glob(f"refused.*{FAILED}")):
        why = str(json.loads(path.read_text(encoding="utf-8"))["why"])
        path.unlink()
        do = "Install the same release and packages on all nodes, or share the environment, then run it again."
        raise StageError(f"A node of the cluster refused the shards: {why}.", where=str(_logs(root)), do=do)
    for job in (job for _, job in sorted(missing.items())):
        for path in sorted(root.glob(f"{job.folder.name}.*{FAILED}")):
            said = json.loads(path.read_text(encoding="utf-8"))["said"]
            if said and not job.folder.exists():
                path.unlink()
                kind, what, where, do = said
                error: LoamError = getattr(errors, kind, StageError)(what, where=where, do=do)
                raise error


def _raise_missing(missing: Sequence[ShardJob[Any, Any]], root: Path, label: str) -> None:
    """Checks that nothing is missing after the last submission.

    Raises:
        StageError: It names the shard, the record if its worker recorded one, and the log.
    """
    if not missing:
        return
    name = missing[0].folder.name
    failed = sorted(root.glob(f"{name}.*{FAILED}"))
    said = json.loads(failed[-1].read_text(encoding="utf-8"))["text"] if failed else "its worker ended without a word"
    records = [path.read_bytes().rstrip(b"\0").decode("utf-8", "replace").partition(" ")[2] for path in sorted(root.glob(f"{name}.*{NOW}"))]
    at = f" at {records[-1]}" if records and records[-1] else ""
    raise StageError(
        f"{len(missing):,} shards of {label} are missing after {SUBMISSIONS} submissions. Shard {name} failed{at}: {said}",
        where=f"{_logs(root)}; the finished shards are kept",
        do="If memory or time ran out, raise runtime.slurm.memory_mb or runtime.slurm.time_min; then run the same command again.",
    )


def _logs(root: Path) -> Path:
    return root / "slurm-logs"


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _call(words: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    """Returns a finished command of Slurm. It has a time limit, because the controller may hang; then the exit code is 1."""
    try:
        return subprocess.run(
            words, input=given, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", "no answer within 60 seconds")
