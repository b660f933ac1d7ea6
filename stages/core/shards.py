"""Sharded work: one function handed to datatrove's executor, with completion per shard.

Guarantee: a shard's folder appears whole or not at all, so a killed stage started again does only the missing shards,
and the result does not depend on the number of workers. Cost: one process per worker, started once per call.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.core.stage import Context

ShardFunction = Callable[[Path, Any], dict[str, Any]]


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
    """
    root = ctx.scratch / label
    root.mkdir(parents=True, exist_ok=True)
    missing = [i for i in range(len(tasks)) if not _folder(root, i).exists()]
    if missing:
        _execute(partial(_one, work, root, list(tasks), missing), len(missing), ctx, label, len(tasks), root)
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


def _one(work: ShardFunction, root: Path, tasks: list[Any], missing: list[int], data: Any, rank: int = 0, world_size: int = 1) -> None:
    """What the executor runs for one shard: write beside, then rename."""
    index = missing[rank]
    folder, partial_folder = _folder(root, index), root / f"{index:05d}.partial"
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    result = work(partial_folder, tasks[index])
    with (partial_folder / "result.json").open("w") as file:
        json.dump(result, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial_folder, folder)


def _execute(job: Callable[..., None], count: int, ctx: Context, label: str, total: int, root: Path) -> None:
    import tempfile
    import threading

    from datatrove.executor import LocalPipelineExecutor
    from datatrove.utils.logging import logger

    logger.disable("datatrove")

    class Quiet(LocalPipelineExecutor):
        """datatrove's executor without its log lines: progress and errors reach the user through ctx and the raise."""

        def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> Any:
            from datatrove.utils.logging import logger

            logger.disable("datatrove")
            return super()._run_for_rank(rank, local_rank, node_rank)

    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            ctx.progress(sum(1 for i in range(total) if _folder(root, i).exists()), total, "shards", label)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with tempfile.TemporaryDirectory(dir=ctx.scratch, prefix="executor-") as logs:
            Quiet(pipeline=[job], tasks=count, workers=min(ctx.runtime.workers, count), logging_dir=logs, skip_completed=False).run()
    finally:
        stop.set()
        watcher.join()
    ctx.progress(total, total, "shards", label)
