"""Deduplication against datasketch and rensa: signatures per core, recall on real near-duplicate editions, memory at 10 M documents.

`python -m tests.bench.bench_dedup` prints the table; `--scale N` is the child process that measures one size. Processor time of
one core, medians of alternating runs. The truth set is brute force: the exact Jaccard of all pairs of the editions in the crawl, or
of all pages of a crawl without them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import numpy as np

BANDS, ROWS, WORDS, THRESHOLD = 22, 5, 5, 0.8
SAMPLE_BYTES, REPEATS, SIZES = 4_000_000, 5, (1_000_000, 3_000_000, 10_000_000)
BUDGET_BYTES = 6 * 2**30
EDITIONS = re.compile(r"//(postgres|httpd|install)\.")  # 15.18 and 15.20, 2.4-prev and 2.4, i386 and amd64


def rows(sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """The table of `make bench`. sizes: documents of the simulated corpora."""
    from tests.bench.corpus import texts_and_urls

    texts, urls = texts_and_urls()
    return [*signature_rows(texts), *recall_rows(texts, urls), *scale_rows(sizes)]


def signature_rows(texts: list[str]) -> list[dict[str, Any]]:
    """MB/s of text per core from strings to signatures of 110 values over word 5-grams."""
    from datasketch import MinHash
    from rensa import RMinHash

    from stages.corpus.dedup.minhash import shingle_lists, signatures
    from stages.corpus.text.words import joined

    sample, size = [], 0
    for text in texts[:: max(1, len(texts) // 1000)]:
        if size < SAMPLE_BYTES:
            sample.append(text)
            size += len(text.encode())

    def grams(text: str) -> list[str]:
        words = re.findall(r"\w+", text.lower())
        return [" ".join(words[i : i + WORDS]) for i in range(max(1, len(words) - WORDS + 1))]

    def ours() -> Any:
        values, offsets = shingle_lists(*joined(sample), WORDS)
        return signatures(values, offsets, BANDS * ROWS, 1)

    def datasketch() -> Any:
        found = []
        for text in sample:
            sketch = MinHash(num_perm=BANDS * ROWS, seed=1)
            sketch.update_batch([gram.encode() for gram in grams(text)])
            found.append(sketch.hashvalues)
        return found

    def rensa() -> Any:
        return RMinHash.digest_matrix_from_token_sets([grams(text) for text in sample], BANDS * ROWS, 1)

    values, offsets = shingle_lists(*joined(sample), WORDS)

    def ours_hashed() -> Any:
        return signatures(values, offsets, BANDS * ROWS, 1)

    def rensa_hashed() -> Any:
        return RMinHash.digest_matrix_from_flat_token_hashes(values, offsets.astype(np.uint64), BANDS * ROWS, 1)

    speeds = alternate([ours, datasketch, rensa, ours_hashed, rensa_hashed], size)
    return [
        row("signatures, MB/s of text per core", speeds[0], "datasketch", speeds[1], 5.0),
        row("signatures, MB/s of text per core", speeds[0], "rensa", speeds[2], 1.2),
        row("of which hashed shingles to signatures (rensa's have 32 bits), no bar", speeds[3], "rensa", speeds[4], 0.0),
    ]


def recall_rows(texts: list[str], urls: list[str]) -> list[dict[str, Any]]:
    """Recall and wrong removals on the editions: our buckets and decisions, datasketch's LSH at its own bands without verification."""
    from datasketch import MinHash, MinHashLSH

    from stages.corpus.dedup.clustering import Candidates, ShingleSets, decide, first_copies, group_bands, undecided
    from stages.corpus.dedup.minhash import distinct, shingle_lists, signatures, sketch, text_hash
    from stages.corpus.text.words import joined

    pages = sorted(zip(urls, texts, strict=True))
    chosen = [(u, t) for u, t in pages if EDITIONS.search(u)] or pages
    texts = [t for _, t in {text_hash(t): (u, t) for u, t in reversed(chosen)}.values()][::-1]  # one of each exact copy
    data, starts = joined(texts)
    values, offsets = shingle_lists(data, starts, WORDS)
    sets = [distinct(values[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    truth = all_pairs(sets)
    hashes, _, keys = sketch(texts, data, starts, WORDS, BANDS, ROWS, 1)
    buckets = np.zeros((BANDS, len(texts)), np.uint32)
    total = group_bands(lambda band: keys[band], np.array([len(s) > 0 for s in sets]), 0, buckets)
    shared = {pair for pair in truth if (buckets[:, pair[0]] * (buckets[:, pair[0]] == buckets[:, pair[1]])).any()}
    verdicts = undecided(len(texts))
    flat, places = np.concatenate(sets), np.concatenate(([0], np.cumsum([len(s) for s in sets]))).astype(np.int64)
    candidates = Candidates(buckets, total, first_copies(hashes), 0)
    list(decide(candidates, ShingleSets(flat, places), THRESHOLD, verdicts, lambda _: None))
    removed = np.flatnonzero(~verdicts.stays).tolist()
    wrong = sum((int(verdicts.kept_by[i]), i) not in truth for i in removed)
    sketches = signatures(values, offsets, 128, 1)
    lsh = MinHashLSH(threshold=THRESHOLD, num_perm=128)
    peers = [MinHash(num_perm=128, seed=1, hashvalues=s, hashfunc=int, scheme="affine64") for s in sketches]
    proposed: set[tuple[int, int]] = set()
    gone, unlike = 0, 0
    kept: list[int] = []
    for i, peer in enumerate(peers):
        if not len(sets[i]):
            continue
        near = lsh.query(peer)
        proposed |= {(j, i) for j in near}
        lsh.insert(i, peer)
        kept.append(i)
        gone += bool(near)
        unlike += bool(near) and not any((j, i) in truth for j in near)
    note = f"{len(truth)} pairs of {len(texts)} pages at J >= {THRESHOLD}"
    return [
        row(f"recall of candidates: {note}", len(shared) / len(truth), "datasketch's bands", len(proposed & truth) / len(truth), 0.98, absolute=True),
        row(f"removed without a kept one at J >= {THRESHOLD}, of {len(removed)}", wrong, "datasketch, not verified", unlike, 0, absolute=True),
    ]  # fmt: skip


def all_pairs(sets: list[np.ndarray]) -> set[tuple[int, int]]:
    """Every pair of sets with Jaccard at or above the threshold, by the product of the document-shingle matrix with itself."""
    from scipy.sparse import csr_matrix

    shingles, columns = np.unique(np.concatenate(sets), return_inverse=True)
    ends = np.concatenate(([0], np.cumsum([len(s) for s in sets])))
    matrix = csr_matrix((np.ones(len(columns), np.int32), columns, ends), (len(sets), len(shingles)))
    found = set()
    for start in range(0, len(sets), 200):
        common = (matrix[start : start + 200] @ matrix.T).tocoo()
        for i, j, both in zip((common.row + start).tolist(), common.col.tolist(), common.data.tolist(), strict=True):
            if i < j and both / (len(sets[i]) + len(sets[j]) - both) >= THRESHOLD:
                found.add((i, j))
    return found


def scale_rows(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Time and peak memory of order, banding, clustering and verification on simulated signatures, each size in a process of its own."""
    found = []
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.bench_dedup", "--scale", str(size)], capture_output=True, text=True, check=True
        )
        seen = json.loads(done.stdout.splitlines()[-1])
        what = f"{size / 1e6:g} M documents: {seen['seconds']:.0f} s ({seen['steps']}), {seen['removed']:,} of {seen['planted']:,} removed; peak bytes"
        found.append(row(what, seen["peak_bytes"], "budget", BUDGET_BYTES, BUDGET_BYTES, absolute=True))
    return found


def scale(documents: int) -> dict[str, Any]:
    """Simulated: 30 % of the documents are near copies (J = 0.9) in families of 2 to 20, 2 % of one page of boilerplate; 100 shingles."""
    from stages.corpus.dedup.clustering import (
        Candidates,
        ShingleSets,
        copy_sets,
        decide,
        first_copies,
        group_bands,
        in_buckets,
        release,
        undecided,
    )
    from stages.corpus.documents.canonical_order import Part, canonical, file_array
    from tests.bench.simulated import simulate

    steps: dict[str, float] = {}
    last = [time.process_time()]

    def step(name: str) -> None:
        steps[name], last[0] = time.process_time() - last[0], time.process_time()

    with tempfile.TemporaryDirectory(prefix="loam-bench-") as folder:
        root = Path(folder)
        made = subprocess.run(
            [sys.executable, "-m", "tests.bench.simulated", str(root), str(documents)], capture_output=True, text=True, check=True
        )
        planted = int(made.stdout)
        last[0] = time.process_time()
        shards = sorted(root.glob("shard-*"))
        parts = [Part(s / "documents.parquet", {n: s / n for n in ("hashes.npy", "sizes.npy", "bands.npy")}, "") for s in shards]
        corpus = canonical(parts, ())
        step("order")
        first = first_copies(corpus.load("hashes.npy"))
        step("exact")
        buckets = file_array(root / "buckets.bin", (BANDS, documents), np.uint32)
        total = group_bands(lambda band: corpus.load("bands.npy", band), first == np.arange(documents), 0, buckets)
        step("group")
        needed = in_buckets(buckets)
        sizes = np.where(needed, corpus.load("sizes.npy"), 0)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        sets = file_array(root / "sets.bin", (int(offsets[-1]),), np.uint64)
        for number, shard in enumerate(shards):
            numbers = corpus.numbers[corpus.rows(number)]
            own = np.flatnonzero(needed[numbers])
            families = np.load(shard / "families.npy", mmap_mode="r")
            for begin in range(0, len(own), 50_000):
                some = own[begin : begin + 50_000]
                values = simulate(families[some])
                copy_sets(values.ravel(), np.arange(len(some) + 1) * values.shape[1], numbers[some], sets, offsets)
            release(sets)
        step("sets")
        verdicts = undecided(documents)
        candidates, shingles = Candidates(buckets, total, first, 0), ShingleSets(sets, offsets)
        edges = sum(len(e.later) for e in decide(candidates, shingles, THRESHOLD, verdicts, lambda _: None))
        step("decide")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps.items())
    return {"seconds": sum(steps.values()), "steps": shown, "peak_bytes": peak, "removed": int((~verdicts.stays).sum()), "planted": planted,
            "edges": edges}  # fmt: skip


def alternate(runs: list[Callable[[], Any]], size_bytes: int) -> list[float]:
    """Median MB per second of processor time of each function, run in turns after one turn that does not count."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(REPEATS + 1):
        for number, run in enumerate(runs):
            start = time.process_time()
            run()
            if turn:
                seconds[number].append(time.process_time() - start)
    return [size_bytes / 1e6 / statistics.median(own) for own in seconds]


def row(what: str, ours: float, peer: str, figure: float, bar: float, absolute: bool = False) -> dict[str, Any]:
    """A line of the table. absolute: the bar is on our figure (an upper bound for counts and bytes), not on the ratio."""
    ratio = ours / figure if figure else float("nan")
    reached = (ours <= bar if bar == 0 or bar > 100 else ours >= bar) if absolute else ratio >= bar
    return {
        "part": "dedup",
        "what": what,
        "ours": round(ours, 4),
        "peer": f"{peer} {figure:.4g}",
        "ratio": round(ratio, 2),
        "bar": bar,
        "reached": reached,
    }


def main() -> None:
    from tests.bench.corpus import described

    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_dedup")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="documents of the simulated corpora")
    parser.add_argument("--scale", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scale:
        print(json.dumps(scale(options.scale)))
        return
    print(f"load {os.getloadavg()[0]:.1f}\n{described()}")
    for line in rows(options.sizes):
        print(" | ".join(f"{value}" for value in line.values()))


if __name__ == "__main__":
    main()
