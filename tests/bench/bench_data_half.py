"""What each stage of the data half costs: the coefficients of stages/questions/calculator/data_stages.py.

`python -m tests.bench.bench_data_half` runs configs/corpus.yaml on the real crawl (tests/made/real.py), or on the WARC files that --warcs
names, in a home of its own, and prints per stage: bytes of its inputs and of its artifact, processor seconds of the workers, processor seconds of
the driver by part (hashes; the rest, while no shard runs, is what is missing), largest memory of one worker and of the driver, and the bytes of
scratch by label of the shards. Processor time is user and system. Sizes and memory do not depend on other work on the machine; processor time
does: beside ten other processes it was two to five times that of a quiet machine. Memory is sampled twice a second.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from flows.execute import perform_here, run_nodes
from flows.opened_recipe import open_session
from stages.record.run import runner, usage
from stages.record.store import integrity, manifest
from stages.record.tables import shards
from tests.bench.corpus import crawl_files
from tests.bench.probe import probe

SAMPLE_S = 0.5


def cpu_s() -> tuple[float, float]:
    """Processor seconds of this process, and of its ended children."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime


class Costs:
    """Adds up what the current node costs. Its methods replace functions of the runner and of the shards while the benchmark runs."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.scratch: dict[str, int] = {}
        self.worker_memory = self.driver_memory = self.base_memory = 0

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = cpu_s()[0]
            try:
                return work(*args, **kwargs)
            finally:
                self.parts[part] = self.parts.get(part, 0.0) + cpu_s()[0] - before

        return call

    def sharded(self, work: Callable[..., Any]) -> Callable[..., Any]:
        timed = self.timed("beside shards", work)

        def call(jobs: Sequence[Any], ctx: Any, label: str, progress: Any, apart: bool) -> Any:
            found = timed(jobs, ctx, label, progress, True)  # a process of its own even for one shard
            self.scratch[label] = usage.folder_bytes(progress.root)
            return found

        return call

    @contextmanager
    def node(self) -> Iterator[None]:
        self.parts, self.scratch, self.worker_memory, ended = {}, {}, 0, threading.Event()
        own = psutil.Process()
        self.base_memory = self.driver_memory = usage._private_bytes(own)

        def sample() -> None:
            while not ended.wait(SAMPLE_S):
                self.driver_memory = max(self.driver_memory, usage._private_bytes(own))
                with suppress(psutil.Error):
                    self.worker_memory = max(self.worker_memory, *map(usage._private_bytes, own.children(recursive=True)), 0)

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()


def measured(warcs: Sequence[Path], settings: Sequence[str], until: str, home: Path) -> list[dict[str, Any]]:
    """The costs of every node, in order, which are printed too."""
    costs = Costs()
    rows: list[dict[str, Any]] = []
    runner.manifest.list_files = costs.timed("hash of outputs", manifest.list_files)  # type: ignore[attr-defined]
    runner.integrity.check = costs.timed("check of inputs", integrity.check)  # type: ignore[attr-defined]
    shards._execute = costs.sharded(shards._execute)
    files = json.dumps([str(path) for path in warcs])
    session = open_session("corpus", [f"crawl.warcs={files}", *settings], str(home))

    def perform(node: str, work: Callable[[Any], Any]) -> Any:
        own, others = cpu_s()
        start = time.monotonic()
        with costs.node():
            result = perform_here(node, work)
        wall, (own_end, others_end) = time.monotonic() - start, cpu_s()
        record = result.artifact.manifest
        read = sum(file["bytes"] for files in record["external"].values() for file in files)
        read += sum(manifest.read_artifact(home / "artifacts" / one["artifact"]).manifest["bytes"] for one in record["inputs"].values())
        counts = record["record_counts"] or {}
        parts = {name: round(seconds, 2) for name, seconds in costs.parts.items()}
        rows.append({
            "node": node, "in_bytes": read, "out_bytes": record["bytes"], "rows": record["rows"], "rows_in": counts.get("rows_in"),
            "chars_in": counts.get("chars_in"), "chars_out": counts.get("chars_out"), "tokens": record.get("tokens"), "workers_cpu_s": round(others_end - others, 2),
            "driver_cpu_s": round(own_end - own, 2), "parts": parts, "wall_s": round(wall, 1), "worker_memory": costs.worker_memory,
            "driver_memory": costs.driver_memory - costs.base_memory, "scratch": dict(costs.scratch),
            "scratch_bytes": (record.get("usage") or {}).get("scratch_bytes"),
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
        return result

    run_nodes(session, session.steps(until), perform, {"flow": "bench"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what each stage of the data half costs.")
    parser.add_argument("--warcs", type=Path, nargs="+", default=None, help="WARC files (default: the real crawl, else the made one)")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="change one recipe value")
    parser.add_argument("--until", default="mix", help="the last node")
    parser.add_argument("--folder", default=None, help="where to make the home")
    options = parser.parse_args()
    print(probe(), flush=True)
    with tempfile.TemporaryDirectory(prefix="loam-bench-", dir=options.folder) as folder:
        measured(options.warcs or crawl_files(), options.settings, options.until, Path(folder) / "home")
    print(probe())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
