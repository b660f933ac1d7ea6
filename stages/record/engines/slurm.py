"""Runs the shards of a stage as arrays of jobs of a Slurm cluster. The home must be on a file system that its nodes share.

A submission is an array of elements, each a process that makes its part of the shards (worker.py). What is missing when an array has ended is
submitted again, because Slurm does not requeue an element that was killed: until nothing is missing, or SUBMISSIONS arrays in a row have made
no shard. Then the shard that is missing is named.
Guarantee: the files are those of the local engine. An array has a name of its own, which is on disk before it is submitted. So a driver that
dies at any moment and starts again finds the array, and one that is stopped (Ctrl-C, SIGTERM) or ends cancels it.
Cost: one listing of the folder and one `squeue` per look, every POLL_S seconds at first and every SLOWEST_S later.
Source: https://slurm.schedmd.com/job_array.html. datatrove's SlurmPipelineExecutor was tried: its attempts share their files, and it does not
submit again what was killed.
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from stages.record.contract import errors
from stages.record.contract.errors import LoamError, RecipeError, StageError
from stages.record.contract.runtime import SlurmRequest
from stages.record.contract.source_code import PROJECT
from stages.record.contract.strict_json import read_object
from stages.record.engines.local import ARRAY, NOW, record_in
from stages.record.engines.worker import FAILED, bundle
from stages.record.store.files import fsync, write_durably

if TYPE_CHECKING:
    from stages.record.contract.declaration import Context
    from stages.record.tables.shards import ShardJob

POLL_S, SLOWEST_S = 2.0, 30.0
SUBMISSIONS = 3
UNKNOWN_S = 600.0
"""How long Slurm's controller may not answer before the stage ends; a restart of it takes seconds."""
ENDED_S = 30.0
ELEMENT_S = 600.0
"""Least work of an element, where earlier builds tell what shards take: a queue takes seconds to start one, and the imports of a stage too."""
LEFT = (f"*{FAILED}", f"*{NOW}", "*.meter.json", "*.partial")
"""What attempts leave that died or came second."""
TOOLS = ("sbatch", "squeue", "scancel", "sinfo")
NEVER = re.compile(r"held|PartitionTimeLimit|BadConstraints|InvalidAccount|InvalidQOS|PartitionNodeLimit", re.IGNORECASE)
"""Reasons for which an element waits until somebody changes it."""
PASSING = re.compile(r"unable to contact|timed? ?out|no answer|temporarily|try again|connection refused", re.IGNORECASE)
UNSENT = ("OPENLINEAGE_API_KEY", "WANDB_API_KEY", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "SLURM_RESTART_COUNT")
"""Variables of the driver that no shard needs. The others reach the workers: a crawl at s3:// is read with the credentials in them."""
OWN_SWITCHES = re.compile(r"^(SQUEUE|SCANCEL|SINFO)_|^SBATCH_(CLUSTERS|WAIT|ARRAY_INX|EXPORT|OUTPUT|OPEN_MODE|NO_REQUEUE|JOB_NAME)$")
"""Variables that change what the commands of Slurm do. Those of partition and account, for example, are the user's choice and stay."""


@dataclass(frozen=True)
class Submission:
    """An array.

    Attributes:
        name: Its name, which no other array has.
        order: The shards, in the order in which elements take every `elements`-th of them; empty if an earlier driver submitted it.
        elements: Its elements.
    """

    name: str
    order: tuple[str, ...] = ()
    elements: int = 1


def refuse_unfit_slurm(request: SlurmRequest) -> None:
    """Checks, before any work, that this machine can submit what the recipe asks for.

    Raises:
        RecipeError: A command of Slurm is missing, its controller does not answer, or it has no such partition.
    """
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        raise RecipeError(
            f"runtime.engine is slurm, but this machine has no {missing[0]}.",
            where="runtime.engine",
            do="Run it on a login node of the cluster, or set runtime.engine=local.",
        )
    asked = _call(["sinfo", "--all", "--noheader", "--format=%R"])
    if asked.returncode:
        raise RecipeError(f"Slurm does not answer: {_last(asked.stderr)}", where="runtime.engine", do="Ask `sinfo`; then run it again.")
    partitions = sorted(set(asked.stdout.split()))
    if unknown := [name for name in request.partition.split(",") if name and name not in partitions]:
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

    A shard that fails, or that no submission makes, ends in a StageError, an error of the disk in an OSError.
    """
    if name := _submitted_before(root):
        ctx.log(f"waits for array {name} of Slurm, which an earlier run submitted")
        with ExitStack() as stack:
            stack.callback(_cancel, name, root)
            _await(Submission(name), jobs, ctx)
    array = Submission("")
    fruitless, missing = 0, _missing(jobs)
    while missing and fruitless < SUBMISSIONS:
        _clear(root)
        with ExitStack() as stack:
            array = _submit(missing, root, ctx, label, stack)
            _await(array, missing, ctx)
        left = _missing(missing)
        _raise_recorded(root, left)
        fruitless = fruitless + 1 if len(left) == len(missing) else 0
        missing = left
    _raise_missing(missing, array, root, label)
    _clear(root)


def cancel_before(root: Path) -> None:
    """Cancels the array that a killed driver left for this folder, before another engine makes its shards.

    Raises:
        StageError: This machine cannot ask Slurm.
    """
    name = str(_read_json(root / ARRAY).get("name", ""))
    if not shutil.which("scancel"):
        do = f"Run `scancel --user={getpass.getuser()} --name={name}` on a login node, then delete {root / ARRAY}."
        raise StageError("An array of Slurm may still make these shards, and this machine has no scancel.", where=name, do=do)
    _cancel(name, root)


def _submit(missing: Sequence[ShardJob[Any, Any]], root: Path, ctx: Context, label: str, stack: ExitStack) -> Submission:
    """Returns the array, after submitting what is missing. It is cancelled when `stack` is closed; one that has ended is not changed by it.

    Raises:
        StageError: Slurm refuses it.
    """
    data = bundle(missing)
    digest = hashlib.sha256(data).hexdigest()
    elements, why = _elements(missing, ctx, label)
    file = root / f"jobs-{digest[:16]}.pickle"
    file.write_bytes(data)
    fsync(file)
    stack.callback(file.unlink, missing_ok=True)
    logs = _logs(root)
    logs.mkdir(exist_ok=True)
    name = re.sub(r"[^\w:@.-]", "_", f"loam:{ctx.node}:{label}:{digest[:8]}{time.time_ns():x}")
    worker = [sys.executable, "-m", "stages.record.engines.worker", str(file), "--of", str(elements), "--digest", digest]
    script = (
        f"#!/bin/sh\ncd {shlex.quote(str(PROJECT))} || exit 1\n"
        f"exec {shlex.join(worker)} --element $SLURM_ARRAY_TASK_ID --attempt s${{SLURM_ARRAY_JOB_ID}}-${{SLURM_ARRAY_TASK_ID}}-${{SLURM_RESTART_COUNT:-0}}\n"
    )
    # Written before sbatch: a driver that dies during it is followed by one that finds the array.
    write_durably(root / ARRAY, json.dumps({"name": name}))
    stack.callback(_cancel, name, root)
    command, begin = ["sbatch", *_options(ctx.runtime.slurm, elements, logs, name)], time.monotonic()
    while (done := _call(command, script)).returncode and not isinstance(_active(name), frozenset):
        if not PASSING.search(done.stderr) or time.monotonic() - begin > UNKNOWN_S:
            do = "Correct runtime.slurm; `loam settings runtime` lists it."
            raise StageError(f"Slurm refuses the array of {label}: {_last(done.stderr)}", where="runtime.slurm", do=do)
        time.sleep(POLL_S)
    ctx.log(f"array {name} of Slurm: {len(missing):,} shards of {label} in {elements:,} elements{why}; their output is in {logs}")
    return Submission(name, tuple(job.folder.name for job in missing), elements)


def _elements(missing: Sequence[ShardJob[Any, Any]], ctx: Context, label: str) -> tuple[int, str]:
    """Returns how many elements make the shards, and for the log, why so few. As far as it is known, each has ELEMENT_S of work or more."""
    most = min(len(missing), ctx.runtime.slurm.elements)
    if not (known := ctx.shards.earlier(label)):
        return most, ""
    took, alias = known
    work_s = took["seconds"] / took["size"] * sum(job.size for job in missing)
    elements = max(1, min(most, int(work_s / ELEMENT_S)))
    return elements, f" of about {work_s / elements / 60:,.1f} minutes, by the times of {alias}"


def _options(asked: SlurmRequest, elements: int, logs: Path, name: str) -> list[str]:
    limit = f"%{asked.at_once}" if asked.at_once else ""
    optional = {
        "partition": asked.partition, "account": asked.account, "mem": f"{asked.memory_mb}M" if asked.memory_mb else "",
        "time": str(asked.time_min or ""),
    }  # fmt: skip
    return [
        "--parsable", "--requeue", "--open-mode=append", "--export=ALL", f"--array=0-{elements - 1}{limit}", f"--job-name={name}",
        f"--cpus-per-task={asked.cores}", f"--output={str(logs).replace('%', '%%')}/{_log_name(name)}-%a.log",
        *(f"--{option}={value}" for option, value in optional.items() if value),
    ]  # fmt: skip


def _log_name(name: str) -> str:
    return name.rpartition(":")[2]


def _submitted_before(root: Path) -> str:
    """Returns the name of the array that an earlier driver submitted for this folder; empty if Slurm has it no more."""
    name = str(_read_json(root / ARRAY).get("name", ""))
    return name if name and _active(name) is not False else ""


def _await(array: Submission, missing: Sequence[ShardJob[Any, Any]], ctx: Context) -> None:
    """Waits until all shards are there or the array has ended.

    Raises:
        StageError: Slurm's controller does not answer for UNKNOWN_S seconds, or an element waits for what will not come.
    """
    folders, root = {job.folder.name for job in missing}, missing[0].folder.parent
    heard, told, pause = time.monotonic(), "", POLL_S
    while not folders <= set(os.listdir(root)):
        reasons = _active(array.name)
        if reasons is False:
            return
        heard = time.monotonic() if reasons is not None else heard
        if time.monotonic() - heard > UNKNOWN_S:
            what = f"Slurm has not said anything about array {array.name} for {UNKNOWN_S:.0f} seconds."
            raise StageError(
                what, where="squeue", do="When it answers again, run the same command: it goes on with the shards that are missing."
            )
        waits = ", ".join(sorted(reasons)) if reasons else ""
        if NEVER.search(waits):
            do = "Correct runtime.slurm, or release the job, then run the same command again."
            raise StageError(f"Slurm does not start array {array.name}: {waits}.", where="squeue", do=do)
        if waits and waits != told:
            ctx.log(f"elements of array {array.name} wait: {waits}")
            told = waits
        time.sleep(pause)
        pause = min(SLOWEST_S, pause * 1.2)


def _active(name: str) -> frozenset[str] | Literal[False] | None:
    """Returns the reasons for which elements of an array wait, if elements of it wait or run; False if none does; None if Slurm does not answer."""
    done = _call(["squeue", f"--user={getpass.getuser()}", "--noheader", "--format=%t|%r", f"--name={name}"])
    if done.returncode:
        return None
    lines = [line.strip().partition("|") for line in done.stdout.splitlines() if line.strip()]
    return frozenset(reason for code, _, reason in lines if code == "PD" and reason not in ("None", "")) if lines else False


def _cancel(name: str, root: Path) -> None:
    """Cancels what is left of an array (nothing, if it has ended), and waits until it works no more: its folders are deleted next."""
    _call(["scancel", f"--user={getpass.getuser()}", f"--name={name}"])
    until = time.monotonic() + ENDED_S
    while isinstance(_active(name), frozenset) and time.monotonic() < until:
        time.sleep(0.5)
    (root / ARRAY).unlink(missing_ok=True)


def _missing(jobs: Sequence[ShardJob[Any, Any]]) -> list[ShardJob[Any, Any]]:
    there = set(os.listdir(jobs[0].folder.parent)) if jobs else ()
    return [job for job in jobs if job.folder.name not in there]


def _clear(root: Path) -> None:
    """Deletes what attempts have left; none of them works any more, or it is of no use."""
    for path in (path for pattern in LEFT for path in root.glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _raise_recorded(root: Path, missing: Sequence[ShardJob[Any, Any]]) -> None:
    """Raises the first error from which another attempt would not be saved: a LoamError of a shard, or an error of the disk.

    Raises:
        StageError: A worker refused the jobs.
        OSError: The disk is full, or cannot be written.
    """
    if not missing:
        return
    files: dict[str, list[Path]] = {}
    for path in sorted(root.glob(f"*{FAILED}")):
        files.setdefault(path.name.partition(".")[0], []).append(path)
    for path in files.get("refused", ()):
        do = "Install the same release and packages on all nodes, or share the environment, then run it again."
        raise StageError(f"A node of the cluster refused the shards: {_read_json(path).get('why', '')}.", where=str(_logs(root)), do=do)
    for path in (path for job in missing for path in files.get(job.folder.name, ())):
        failure = _read_json(path)
        if isinstance(said := failure.get("said"), list) and said:
            kind, what, where, do = map(str, said)
            error: LoamError = getattr(errors, kind, StageError)(what, where=where, do=do)
            raise error
        number = int(str(failure.get("number", 0)))
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise OSError(number, os.strerror(number), str(failure.get("file", "")) or None)


def _raise_missing(missing: Sequence[ShardJob[Any, Any]], array: Submission, root: Path, label: str) -> None:
    """Checks that nothing is missing after the last submission.

    Raises:
        StageError: It names the shard, the record if its worker recorded one, and the last line of its log.
    """
    if not missing:
        return
    name = missing[0].folder.name
    log = _logs(root) / f"{_log_name(array.name)}-{array.order.index(name) % array.elements}.log"
    failed = max(root.glob(f"{name}.*{FAILED}"), key=lambda path: path.stat().st_mtime, default=None)
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    said = _read_json(failed).get("text", "") if failed else f"its worker ended, and its log ends with: {_last(text)}"
    records = max(root.glob(f"{name}.*{NOW}"), key=lambda path: path.stat().st_mtime, default=None)
    record = record_in(records)[1] if records else ""
    raise StageError(
        f"{len(missing):,} shards of {label} are missing after {SUBMISSIONS} submissions that made none of them. "
        f"Shard {name} failed{f' at {record}' if record else ''}: {said}",
        where=f"{log}; the finished shards are kept",
        do="If memory or time ran out, raise runtime.slurm.memory_mb or runtime.slurm.time_min; then run the same command again.",
    )


def _logs(root: Path) -> Path:
    return root / "slurm-logs"


def _read_json(path: Path) -> dict[str, JsonValue]:
    """Returns the object in a file; an empty one where it cannot be read: a node may have died while it wrote it."""
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSENT and not OWN_SWITCHES.match(name)}


def _call(words: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    """Returns a finished command of Slurm. It has a time limit, because the controller may hang; then the exit code is 1."""
    try:
        return subprocess.run(
            words,
            input=given,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", "no answer within 60 seconds")
    except OSError as error:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} cannot be started: {error.strerror}; try again")
