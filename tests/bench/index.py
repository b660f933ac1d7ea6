"""Benchmark of the index: what updates, walks, queries and traces cost as a home grows. `make bench`, or python -m tests.bench.index --help.

Every size is a home of its own (see made_home), removed afterwards. Questions are timed as a user asks them, each on a fresh
connection: the best of several and the median; an update and a reindex once. The last rows are whole commands, Python's start included.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.pipeline import pipeline
from stages.questions import lineage as ask
from stages.questions.tracing import trace, trace_start
from stages.record.index import database
from stages.record.store import runs
from tests.bench.made_home import SHARED_BY, artifact_name, document, make_home
from tests.bench.probe import probe

PROJECT = Path(__file__).resolve().parents[2]
NEW = 1000


def main() -> int:
    """Prints one table: a row per measurement, a column per size."""
    parser = argparse.ArgumentParser(description="Times the index over homes of growing size.")
    parser.add_argument("--artifacts", type=int, nargs="+", default=[2_000, 10_000, 100_000], help="artifacts of each home")
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 1_000_000, 10_000_000], help="document rows of each home")
    parser.add_argument("--folder", default=None, help="where to make the homes (default: the system's temporary folder)")
    options = parser.parse_args()
    if len(options.artifacts) != len(options.rows) or min(options.artifacts) <= NEW:
        parser.error(f"--artifacts and --rows need one number per home, artifacts above {NEW}")
    columns = []
    print(probe(), flush=True)
    for artifacts, rows in zip(options.artifacts, options.rows, strict=True):
        with tempfile.TemporaryDirectory(prefix="loam-bench-", dir=options.folder) as folder:
            columns.append(measure(Path(folder) / "home", artifacts, rows))
        print(f"{artifacts:,} artifacts done; {probe()}", file=sys.stderr, flush=True)
    for name in columns[0]:
        print(f"{name:<46}" + "".join(f"{column[name]:>18}" for column in columns))
    print(probe())
    return 0


def measure(home: Path, artifacts: int, rows: int) -> dict[str, str]:
    """The figures of one size, as text by name."""
    made = make_home(home, artifacts - NEW, rows)
    found = {"artifacts": f"{artifacts:,}", "document rows": f"{made.rows:,}", "files of decisions": f"{made.files:,}"}
    found["reindex (all but the new)"] = once(lambda: database.reindex(home))
    make_home(home, NEW, 10_000, first_run=made.runs)
    found[f"update: {NEW:,} new manifests"] = once(lambda: database.update(home))
    found["update: nothing new"] = once(lambda: database.update(home))
    found["index file"] = f"{(home / database.FILE).stat().st_size / 1e6:.1f} MB"
    middle = made.runs // 2
    report, crawl = artifact_name("report", middle), artifact_name("crawl", middle)
    assert len(ask.up(home, report)) == len(pipeline()) - 1 and len(ask.down(home, crawl)) > len(pipeline())
    found["up (from a report)"] = best(lambda: ask.up(home, report))
    found["up (from the node `report`)"] = best(lambda: ask.up(home, "report"))
    found["down (from a crawl)"] = best(lambda: ask.down(home, crawl))
    found["runs"] = best(lambda: ask.run_rows(home))
    newest = (len(runs.run_ids(home)) - 1) // SHARED_BY["extract"]
    doc, url = document(newest // 2, 1)
    found["decisions of a URL, all rows"] = best(lambda: asked(home, "url = ?", url), 3)
    found["decisions of a doc_id, all rows"] = best(lambda: asked(home, "doc_id = ?::UUID", doc), 3)
    joined = "SELECT count(*) FROM decisions JOIN current USING (artifact_id, node) WHERE node = 'filter'"
    found["decisions of filter, JOIN current"] = best(lambda: database.query(home, joined), 3)
    doc, url = document(newest, 1)
    assert len(trace.trace_doc(home, trace_start.start(home), doc).verdicts) >= 1
    found["trace of a document"] = best(lambda: trace.trace_doc(home, trace_start.start(home), doc), 3)
    found["trace of a step"] = best(lambda: trace.trace_step(home, trace_start.start(home, trained=True), 3), 3)
    found["command: loam lineage up report"] = best(lambda: command("lineage", "up", "report", "--home", str(home)), 3)
    found["command: loam lineage down <crawl>"] = best(lambda: command("lineage", "down", crawl, "--home", str(home)), 3)
    found["command: loam plan tiny"] = best(lambda: command("plan", "tiny", "--home", str(home)), 3)
    shutil.rmtree(home)
    return found


def asked(home: Path, condition: str, value: str) -> None:
    rows = database.query(home, f"SELECT node, verdict, reason FROM decisions WHERE {condition}", [value])[1]
    assert rows, (condition, value)


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "flows.cli", *words], cwd=PROJECT, capture_output=True, check=False)


def once(work: Callable[[], Any]) -> str:
    start = time.perf_counter()
    work()
    return _text(time.perf_counter() - start)


def best(work: Callable[[], Any], times: int = 7) -> str:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return f"{_text(min(taken))} ({_text(statistics.median(taken))})"


def _text(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
