"""Sharded work: one function, a task per shard, local worker processes, with completion per shard.

Guarantee: a shard's folder appears whole or not at all, so a killed stage started again does only the missing shards, and the
result does not depend on the number of workers. No worker outlives its stage, however the stage ends, and a worker that is
killed (out of memory, for example) fails the stage at once. Cost: one process per worker, started once per call.

Why the standard library's pool and not datatrove's LocalPipelineExecutor: killing a stage left that one's forkserver and workers
behind, writing into the scratch folder of the next run; a killed worker made it wait for ever; and its manager process, a
fork, keeps every file lock of the stage open.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.core.errors import StageError

if TYPE_CHECKING:
    from stages.core.stage import Context

ShardFunction = Callable[[Path, Any], dict[str, Any]]
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Shard:
    """A finished shard: its number, its folder in scratch, and what the function returned (plain JSON)."""

    index: int
    path: Path
    result: dict[str, Any]


def run_shards(work: ShardFunction, tasks: Sequence[Any], ctx: Context, label: str) -> list[Shard]:
    """Runs `work(folder, task)` for every task on `ctx.runtime.workers` local processes; shards in task order.

    work: a module-level function (or functools.partial of one) that writes files into `folder` and returns plain JSON.
    tasks: picklable values, one per shard. label: what is being made; names the sub-folder of ctx.scratch.
    Raises what `work` raised; StageError when a worker was killed.
    """
    root = ctx.scratch / label
    root.mkdir(parents=True, exist_ok=True)
    missing = [i for i in range(len(tasks)) if not _folder(root, i).exists()]
    if missing:
        _execute([partial(_one, work, _folder(root, i), tasks[i]) for i in missing], ctx, label, len(tasks), root)
    shards = []
    for i in range(len(tasks)):
        folder = _folder(root, i)
        shards.append(Shard(i, folder, json.loads((folder / "result.json").read_text())))
    return shards


def collect(shards: Sequence[Shard], name: str, out: Path) -> list[Path]:
    """Puts every shard's file `name` (such as "documents.parquet") at out/<stem>/<index>.<suffix>; returns the paths.

    Hard links, not moves: a stage killed while it collects starts again from whole shards.
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


def _one(work: ShardFunction, folder: Path, task: Any) -> None:
    """What a worker does for one shard: write beside, then rename."""
    partial_folder = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    result = work(partial_folder, task)
    with (partial_folder / "result.json").open("w") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial_folder, folder)


def _execute(jobs: Sequence[Callable[[], None]], ctx: Context, label: str, total: int, root: Path) -> None:
    """Runs the jobs (in this process when one worker is enough) while a thread reports how many shards there are."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            ctx.progress(sum(1 for i in range(total) if _folder(root, i).exists()), total, "shards", label)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    workers = min(ctx.runtime.workers, len(jobs))
    try:
        if workers == 1:
            for job in jobs:
                job()
        else:
            _in_pool(jobs, workers, label)
    finally:
        stop.set()
        watcher.join()
    ctx.progress(total, total, "shards", label)


def _in_pool(jobs: Sequence[Callable[[], None]], workers: int, label: str) -> None:
    """Spawned processes: children of this one, so that the kernel can end them with it, and without its open files and locks."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _belong_to, (os.getpid(),))
    try:
        for done in as_completed([pool.submit(job) for job in jobs]):
            done.result()
    except BrokenProcessPool:
        what, do = f"A worker process of {label} was killed.", "Most often memory ran out: set runtime.workers lower and run it again."
        raise StageError(what, where=f"{workers} workers; the finished shards are kept", do=do) from None
    finally:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()  # after an error shutdown alone would wait for the shards under way
        pool.shutdown(cancel_futures=True)


def _belong_to(stage: int) -> None:
    """In a new worker: the kernel kills it when the stage's process ends; until then only the stage ends it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group: the stage hears them too, and decides
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != stage:
        os._exit(1)
