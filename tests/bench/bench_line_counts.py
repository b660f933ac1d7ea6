"""boilerplate's counts at scale: simulated keys of the lines of many pages, by hosts of unequal size.

`python -m tests.bench.bench_line_counts --pages 10000000 --hosts 100000`: writes the keys as the workers of boilerplate would (100 lines and
20 cells a page; a third are the frame of their host), and then runs what follows: counting, merging, and the search for every key. Prints
seconds, the most memory of a process, and the size of the scratch folder.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from stages.corpus.boilerplate.known_lines import KnownLines
from stages.corpus.boilerplate.line_counts import COUNTS, KeyedFile, count_keyed, counts_of_pages
from stages.record.contract.declaration import Context
from stages.record.contract.runtime import Runtime
from stages.record.tables.shards import Meter, Shard, run_shards

FILE_PAGES, FRAME, OWN, CELLS = 30_000, 30, 70, 20


def simulated(folder: Path, task: tuple[int, int, int], meter: Meter) -> KeyedFile:
    """Writes what key_file writes, for FILE_PAGES pages. task: number of the file, pages, hosts."""
    number, pages, hosts = task
    draw = np.random.default_rng(number)
    host = (hosts * draw.random(pages) ** 3).astype(np.uint64)  # the largest host has about 2 % of the pages of 100,000 hosts
    seed = (host + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    frame = seed[:, None] + draw.integers(0, 2 * FRAME, (pages, FRAME)).astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    own = draw.integers(0, 2**64, (pages, OWN + CELLS), np.uint64)
    np.save(folder / "keys.npy", np.concatenate([frame, own], axis=1).ravel())
    np.save(folder / "line_counts.npy", np.full(pages, FRAME + OWN))
    np.save(folder / "key_counts.npy", np.full(pages, FRAME + OWN + CELLS))
    np.save(folder / "hosts.npy", seed)
    for name in ("titles", "urls", "texts"):
        np.save(folder / f"{name}.npy", draw.integers(1, 2**64, pages, np.uint64))
    return {"keys": pages * (FRAME + OWN + CELLS)}


def found_again(folder: Path, task: tuple[Path, Path], meter: Meter) -> dict[str, int]:
    """Looks up every key of a file, as the workers that judge pages do. task: the counts, and the keys of a file."""
    of_page = counts_of_pages(KnownLines((task[0],)), task[1])
    return {"recurring": int((of_page(0, "host", FRAME + OWN).of_lines >= 4).sum())}


def size_gb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="Times boilerplate's counts on simulated keys.")
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--hosts", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        scratch, out = Path(made) / "scratch", Path(made) / "out"
        out.mkdir()
        ctx = Context(
            "boilerplate",
            0,
            Runtime(workers=given.workers),
            scratch,
            scratch / "cache",
            lambda *_: None,
            print,
            lambda *_: None,
            lambda name: (),
        )
        tasks = [(n, min(FILE_PAGES, given.pages - n * FILE_PAGES), given.hosts) for n in range(-(-given.pages // FILE_PAGES))]
        keyed: list[Shard[KeyedFile]] = run_shards(simulated, tasks, ctx, "keys")
        print(f"{given.pages:,} pages, {sum(shard.result['keys'] for shard in keyed):,} keys, {size_gb(scratch):.1f} GB")
        began = time.monotonic()
        count_keyed(keyed, (), out, ctx)
        counted = time.monotonic()
        found = run_shards(found_again, [(out / COUNTS, shard.path) for shard in keyed], ctx, "found")
        ended = time.monotonic()
        most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**20
        print(f"counted in {counted - began:.0f} s, found again in {ended - counted:.0f} s with {given.workers} workers")
        print(f"most memory of a process {most:.2f} GiB, scratch {size_gb(scratch):.1f} GB, artifact {size_gb(out):.2f} GB")
        print(f"recurring lines of the first page of a file: {np.mean([shard.result['recurring'] for shard in found]):.1f} of {FRAME}")


if __name__ == "__main__":
    main()
