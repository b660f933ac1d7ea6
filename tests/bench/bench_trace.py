"""`loam trace` of a document by id, URL and record, in a made home of any size (see traced_home).

`python -m tests.bench.bench_trace --documents 1000000`: prints the median and the 95th percentile of each question, for a process that is
already started and for the whole command with the start of Python. The documents are drawn with a seed; half of the questions are about
documents that a stage dropped or changed. The files are in the cache of the system, as they are after a run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from stages.questions.tracing.trace import recorded_doc, trace_doc, trace_url
from stages.questions.tracing.trace_start import start
from stages.record.index import database
from tests.bench.probe import probe
from tests.bench.traced_home import REASONS, doc_id, make_traced_home, record, url

PROJECT = Path(__file__).resolve().parents[2]
WARM, COLD = 40, 8


def by_id(home: Path, number: int) -> str:
    return trace_doc(home, start(home), doc_id(number)).doc_id


def by_url(home: Path, number: int) -> str:
    (found,) = trace_url(home, start(home), url(number))
    return found.doc_id


def by_record(home: Path, number: int) -> str:
    of = start(home)
    return trace_doc(home, of, recorded_doc(home, of, record(number))).doc_id


QUESTIONS: dict[str, tuple[Callable[[Path, int], str], Callable[[int], str]]] = {
    "--doc": (by_id, doc_id), "--url": (by_url, url), "--record": (by_record, record),
}  # fmt: skip
"""Option -> the question in a started process, and the value of the option."""


def drawn(documents: int, count: int, seed: int) -> list[int]:
    """Numbers of documents. Every second one is a multiple of a number of REASONS."""
    numbers = np.random.default_rng(seed).integers(0, documents, count).tolist()
    every = [one for one, _, _ in REASONS.values()]
    return [number - number % every[place % len(every)] if place % 2 else number for place, number in enumerate(numbers)]


def timed(ask: Callable[[int], None], numbers: list[int]) -> str:
    """Asks about each document. The seconds of processors, children included, say more than the others on a machine with other work."""
    taken, used = [], []
    for number in numbers:
        begun, before = time.perf_counter(), sum(os.times()[:4])
        ask(number)
        taken.append(time.perf_counter() - begun)
        used.append(sum(os.times()[:4]) - before)
    return f"p50 {np.percentile(taken, 50):.2f} s, p95 {np.percentile(taken, 95):.2f} s; of processors p50 {np.percentile(used, 50):.2f} s"


def warm(home: Path, option: str, number: int) -> None:
    """Asks in this process."""
    question, _ = QUESTIONS[option]
    assert question(home, number).replace("-", "") == doc_id(number)


def cold(home: Path, option: str, number: int) -> None:
    """Runs the command."""
    _, value = QUESTIONS[option]
    command = [sys.executable, "-m", "flows.cli", "trace", option, value(number), "--home", str(home)]
    subprocess.run(command, cwd=PROJECT, capture_output=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the trace of a document in a made home.")
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--folder", default=None, help="where to make the homes (default: the system's temporary folder)")
    given = parser.parse_args()
    print(probe(), flush=True)
    for documents in given.documents:
        with tempfile.TemporaryDirectory(prefix="loam-bench-", dir=given.folder) as folder:
            home, begun = Path(folder) / "home", time.perf_counter()
            make_traced_home(home, documents)
            database.reindex(home)
            print(f"{documents:,} documents, made in {time.perf_counter() - begun:.0f} s", flush=True)
            for option in QUESTIONS:
                print(f"{option}, started process: {timed(partial(warm, home, option), drawn(documents, WARM, 1))}", flush=True)
                print(f"{option}, whole command: {timed(partial(cold, home, option), drawn(documents, COLD, 2))}", flush=True)
    print(probe())


if __name__ == "__main__":
    main()
