"""Runs sharded work: one function, one task per shard, local worker processes. Each shard completes on its own.

Guarantee: a shard's folder appears whole or not at all, also after a power cut, so a killed stage that starts again does only the missing shards. The result does
not depend on the number of workers. No worker outlives its stage, however the stage ends. A killed worker (out of memory, for example)
fails the stage at once. The progress shows documents, MB/s, dropped documents and the time left.
Cost: one process per worker, started once per call; two small files per second for the progress of each.

Reason for the standard library's process pool instead of datatrove's LocalPipelineExecutor: after a stage was killed, the forkserver and
workers of that executor stayed alive and wrote into the scratch folder of the next run. A killed worker made it wait forever. Its manager
process, a fork, keeps every file lock of the stage open.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from stages.record.contract.errors import StageError
from stages.record.processes import die_with_parent
from stages.record.store.files import fsync

if TYPE_CHECKING:
    from concurrent.futures import Future
    from multiprocessing.process import BaseProcess

    from stages.record.contract.declaration import Context

MEASURE = "meter.json"
NOW, NOW_BYTES = ".now", 1024
LOOK_S = 0.5
REAPED_S = 10
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Shard(Generic[Result]):
    """A finished shard: its number, its folder in scratch, and what the function returned (plain JSON)."""

    index: int
    path: Path
    result: Result


@dataclass
class Counts:
    """What workers have done so far. `share` is the finished part, 0 to 1."""

    documents: int = 0
    size_bytes: int = 0
    share: float = 0.0
    dropped: Counter[str] = field(default_factory=Counter)


class Meter:
    """Counts of a worker for its current shard. The stage adds up all shards for the progress line. They decide no output byte."""

    def __init__(self, path: Path) -> None:
        """Starts to count. path: the file that `write` replaces now and then while `add` counts."""
        self._path, self._at = path, time.monotonic()
        self.documents, self.size_bytes, self.share, self.dropped = 0, 0, 0.0, Counter[str]()
        self._expected = 0
        self._now: mmap.mmap | None = None

    def at(self, record: str) -> None:
        """Records which record is being processed, in memory that is shared with a file. About 2 µs.

        If this process dies, the stage finds the record in that file.
        """
        if self._now is None:
            with self._path.with_suffix(NOW).open("w+b") as file:
                file.truncate(NOW_BYTES)
                self._now = mmap.mmap(file.fileno(), NOW_BYTES)
        self._now[:] = f"{os.getpid()} {record}".encode("utf-8", "replace")[:NOW_BYTES].ljust(NOW_BYTES, b"\0")

    def expect(self, documents: int) -> None:
        """Sets how many documents the shard has, if that is known before it is read."""
        self._expected = documents

    def add(self, documents: int = 1, size_bytes: int = 0, dropped: str = "", share: float | None = None) -> None:
        """Counts finished documents.

        Args:
            documents: How many.
            size_bytes: Their size.
            dropped: The reason; empty for kept documents.
            share: Finished part of the shard (0 to 1), where no number of documents was expected.
        """
        self.documents += documents
        self.size_bytes += size_bytes
        if dropped:
            self.dropped[dropped] += documents
        if share is not None:
            self.share = share
        elif self._expected:
            self.share = min(1.0, self.documents / self._expected)
        if time.monotonic() - self._at >= LOOK_S:
            self._at = time.monotonic()
            self.write(self._path)

    def write(self, path: Path) -> None:
        """Writes the counts to the file that the stage reads, by a rename, so that it is never read half-written."""
        values = {"documents": self.documents, "size_bytes": self.size_bytes, "share": self.share, "dropped": dict(self.dropped)}
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(values), encoding="utf-8")
        os.replace(fresh, path)


ShardFunction = Callable[[Path, Task, Meter], Result]
"""A function from (folder, task, meter) to plain JSON: what it has to say beside the files that it writes into the folder."""


def run_shards(
    work: ShardFunction[Task, Result], tasks: Sequence[Task], ctx: Context, label: str, sizes_bytes: Sequence[int] = (), apart: bool = False
) -> list[Shard[Result]]:
    """Runs `work(folder, task, meter)` for every task on `ctx.runtime.workers` local processes.

    What `work` raises, this function raises. A worker that was killed is a StageError that names the record which the worker was
    processing, if it recorded one.

    Args:
        work: A module-level function (or functools.partial of one). It writes files into `folder`, counts on `meter`, returns plain JSON.
        tasks: Picklable values, one per shard.
        ctx: The stage's context.
        label: What is being made; the name of the sub-folder of ctx.scratch.
        sizes_bytes: Size of each task, so that large shards weigh more in the progress. Without it all weigh the same.
        apart: Uses a separate process even for one worker, because a task may crash its process.

    Returns:
        The shards in the order of the tasks.
    """
    root = ctx.scratch / label
    root.mkdir(parents=True, exist_ok=True)
    missing = [i for i in range(len(tasks)) if not _folder(root, i).exists()]
    if missing:
        jobs = [partial(_one, work, _folder(root, i), tasks[i]) for i in missing]
        _execute(jobs, ctx, label, _Progress(root, sizes_bytes or [1] * len(tasks)), apart)
    folders = [_folder(root, i) for i in range(len(tasks))]
    return [Shard(i, folder, json.loads((folder / "result.json").read_text(encoding="utf-8"))) for i, folder in enumerate(folders)]


def collect(shards: Sequence[Shard[Result]], name: str, out: Path) -> list[Path]:
    """Links every shard's file `name` (such as "documents.parquet") to out/<stem>/<index>.<suffix>.

    The files are hard links, not moved, so a stage that is killed here starts again from complete shards.

    Returns:
        The new paths, in the order of the shards.
    """
    stem, _, suffix = name.partition(".")
    (out / stem).mkdir(parents=True, exist_ok=True)
    paths = []
    for shard in shards:
        target = out / stem / f"{shard.index:05d}.{suffix}"
        os.link(shard.path / name, target)
        paths.append(target)
    return paths


def _folder(root: Path, index: int) -> Path:
    return root / f"{index:05d}"


def _running(folder: Path) -> Path:
    """Returns the path of the file in which the worker of a shard records its progress."""
    return folder.with_name(f"{folder.name}.{MEASURE}")


def _one(work: ShardFunction[Task, Result], folder: Path, task: Task) -> None:
    """Does one shard in a worker: writes into a temporary folder, fsyncs all that is in it, then renames it."""
    partial_folder = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    meter = Meter(_running(folder))
    result = work(partial_folder, task, meter)
    meter.write(partial_folder / MEASURE)
    (partial_folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    for path in (*partial_folder.rglob("*"), partial_folder):
        fsync(path)
    os.replace(partial_folder, folder)
    for left in (_running(folder), _running(folder).with_suffix(NOW)):
        left.unlink(missing_ok=True)


def _records(root: Path) -> dict[int, str]:
    """Returns process id -> the record that a worker is processing."""
    said = (path.read_bytes().rstrip(b"\0").decode("utf-8", "replace").partition(" ") for path in root.glob(f"*{NOW}"))
    return {int(pid): record for pid, _, record in said if pid}


class _Progress:
    """Adds up the meters of all shards. Speed and time left count only work of this run, not shards that an earlier run finished."""

    def __init__(self, root: Path, sizes_bytes: Sequence[int]) -> None:
        self.root, self.sizes, self.started = root, sizes_bytes, time.monotonic()
        self.finished: dict[int, Counts] = {}
        self.before = self._sum()

    def line(self) -> tuple[float, int, str]:
        """Returns (shards done, number of shards, text with documents, MB/s, dropped share and reasons, time left)."""
        now, seconds = self._sum(), max(1e-9, time.monotonic() - self.started)
        parts = [f"{now.documents:,} documents"] if now.documents else []
        if speed := (now.size_bytes - self.before.size_bytes) / seconds:
            parts.append(f"{speed / 1e6:.1f} MB/s")
        if now.documents and (dropped := sum(now.dropped.values())):
            reasons = ", ".join(f"{reason} {count / now.documents:.0%}" for reason, count in now.dropped.most_common(3))
            parts.append(f"{dropped / now.documents:.0%} dropped ({reasons})")
        if (done := now.share - self.before.share) > 0 and now.share < 1:
            left = round(seconds * (1 - now.share) / done)
            parts.append(f"{left // 60}:{left % 60:02d} left")
        return round(now.share * len(self.sizes), 1), len(self.sizes), ", ".join(parts)

    def _sum(self) -> Counts:
        total = Counts()
        weight = sum(self.sizes) or 1
        for index, size in enumerate(self.sizes):
            if (shard := self._shard(index)) is None:
                continue
            total.documents += shard.documents
            total.size_bytes += shard.size_bytes
            total.share += size / weight * shard.share
            total.dropped.update(shard.dropped)
        return total

    def _shard(self, index: int) -> Counts | None:
        """Returns the counts of a shard. None before the worker wrote them for the first time."""
        folder = _folder(self.root, index)
        with suppress(FileNotFoundError):
            if index not in self.finished:
                self.finished[index] = replace(_read_counts(folder / MEASURE), share=1.0)
            return self.finished[index]
        with suppress(FileNotFoundError):
            return _read_counts(_running(folder))
        return None


def _read_counts(path: Path) -> Counts:
    """Returns the counts that `Meter.write` wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return Counts(values["documents"], values["size_bytes"], values["share"], Counter(values["dropped"]))


def _execute(jobs: Sequence[Callable[[], None]], ctx: Context, label: str, progress: _Progress, apart: bool) -> None:
    """Runs the jobs (in this process if one worker is enough) while a thread reports their progress."""
    stop = threading.Event()

    def tell() -> None:
        done, total, text = progress.line()
        ctx.progress(done, total, "shards", f"{label}: {text}" if text else label)

    def watch() -> None:
        while not stop.wait(LOOK_S):
            tell()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    workers = min(ctx.runtime.workers, len(jobs))
    try:
        if workers == 1 and not apart:
            for job in jobs:
                job()
        else:
            run_in_pool(jobs, workers, label, progress.root)
    finally:
        stop.set()
        watcher.join()
    tell()


def run_in_pool(jobs: Sequence[Callable[[], None]], workers: int, label: str, root: Path | None = None) -> None:
    """Runs picklable jobs in new worker processes.

    The processes are spawned, so they do not inherit open files and locks. The kernel ends them when this process ends. What a job raises,
    this function raises. A worker that was killed is a StageError.

    Args:
        jobs: Picklable functions without arguments.
        workers: Number of processes.
        label: What is being made, for messages.
        root: The folder in which workers record which record they process.
    """
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _belong_to, (os.getpid(),))
    try:
        pending = {pool.submit(job) for job in jobs}  # each submission starts a worker until there are enough
        born = set(multiprocessing.active_children()) - others
        _await(pending, born)
    except BrokenProcessPool:
        killed = _killed(set(multiprocessing.active_children()) | born, label, root)
        raise killed from None
    finally:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()  # after an error, shutdown alone would wait for the running shards
        pool.shutdown(cancel_futures=True)


def _await(pending: set[Future[None]], workers: set[BaseProcess]) -> None:
    """Waits for all jobs.

    Raises:
        BrokenProcessPool: A worker has died. The pool itself notices the death of a later worker only at its next result.
    """
    while pending:
        done, pending = wait(pending, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        for job in done:
            job.result()
        if pending and workers - set(multiprocessing.active_children()):
            raise BrokenProcessPool


def _killed(workers: set[BaseProcess], label: str, root: Path | None) -> StageError:
    """Returns the error for a dead worker: by which signal it died, and at which record."""
    until = time.monotonic() + REAPED_S  # the pool sees the worker's closed pipe before the kernel has ended the process
    while all(worker.exitcode is None for worker in workers) and time.monotonic() < until:
        time.sleep(0.01)
    dead = {worker.pid: -code for worker in workers if (code := worker.exitcode) is not None and code < 0}
    names = sorted({signal.Signals(number).name for number in dead.values()})
    records = _records(root) if root else {}
    at = [records[pid] for pid in dead if pid in records]
    where = f"at {'; '.join(at)}" if at else f"{len(workers)} workers"
    do = "Most often memory ran out: set runtime.workers lower and run it again."
    if at:
        do += " If it ends at the same record with memory enough, leave the file that holds it out and report the record."
    return StageError(
        f"A worker process of {label} was killed{f' by {names[0]}' if names else ''}.",
        where=f"{where}; the finished shards are kept",
        do=do,
    )


def _belong_to(stage: int) -> None:
    """Prepares a new worker: the kernel kills it when the stage's process ends; before that, only the stage ends it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are sent to the whole process group; the stage receives them and decides
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(stage)
