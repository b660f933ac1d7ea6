"""The time of every page of the dashboard in a large home: a real run, beside made runs with artifacts and metric rows by the thousand.

`python -m tests.bench.bench_dashboard --home HOME`: HOME has a run, for example of tiny, and is copied; without --home, only the pages of a made
run are measured. A page is timed from the request to the whole answer, which the server sends when the page is drawn; once as the first request
of that page, and then as the median, which on a busy machine says less than the processor's time of the server. The browser's own time to show the
page is not counted.
Cost: a minute for 10,000 artifacts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dashboards.page import all_pages
from flows.pipeline import pipeline
from stages.record.index import database
from stages.record.store import runs
from tests.bench.made_home import artifact_name, make_home, template, write_manifest
from tests.bench.probe import probe

PROJECT = Path(__file__).resolve().parents[2]
ROUNDS = 5


def main() -> int:
    """Prints one line per page."""
    parser = argparse.ArgumentParser(description="Times the pages of the dashboard.")
    parser.add_argument("--home", type=Path, default=None, help="a home with a run, whose pages are measured beside those of a made one")
    parser.add_argument("--artifacts", type=int, default=10_000, help="made artifacts")
    parser.add_argument("--metric-rows", type=int, default=1_000_000, help="steps of the made run's training")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loam-bench-") as folder:
        home = Path(folder) / "home"
        real = copied(options.home, home) if options.home else ""
        made = make_home(home, options.artifacts, 100 * options.artifacts)
        write_metrics(home, made.runs - 1, options.metric_rows)
        database.update(home)
        print(f"{probe()}\n{'page':<34}{'first':>10}{'median':>10}{'processor':>12}", flush=True)
        with subprocess.Popen([sys.executable, "-m", "flows.cli", "dashboard", "--port", "0", "--home", str(home)], cwd=PROJECT, stdout=subprocess.PIPE,
                              text=True) as server:  # fmt: skip
            try:
                assert server.stdout is not None
                measure(server.stdout.readline().split()[0], server.pid, {"made": f"made-{made.runs}"} | ({"real": real} if real else {}))
            finally:
                server.terminate()
    print(probe())
    return 0


def copied(source: Path, home: Path) -> str:
    """Copies the artifacts and runs of a home; returns its newest run."""
    for name in ("artifacts", "runs"):
        shutil.copytree(source / name, home / name)
    return max(runs.run_ids(home))


def write_metrics(home: Path, run: int, rows: int) -> None:
    """Gives the training of a made run a metrics table of so many steps."""
    step = np.arange(1, rows + 1)
    noise = np.random.default_rng(1).normal(size=rows)
    columns = {"step": step, "tokens": step * 2048, "loss": 3 + 5 / np.sqrt(step) + 0.1 * noise, "lr": 1e-3 * (1 - step / rows), "grad_norm": 1 + 0.1 * noise,
               "tokens_per_s": 9000 + 50 * noise, "skipped": np.zeros(rows)}  # fmt: skip
    folder = home / "artifacts" / artifact_name("pretrain", run)
    pq.write_table(pa.table(columns), folder / "metrics.parquet", compression="zstd")
    inputs = next(node.inputs for node in pipeline() if node.name == "pretrain")
    write_manifest(folder, run, "pretrain", inputs, template("pretrain"))


def measure(url: str, pid: int, named: dict[str, str]) -> None:
    """Prints the times of every page. pid: the server. named: what the run is -> the run."""
    with httpx.Client(base_url=url.partition("?")[0], timeout=120, follow_redirects=True) as client:
        client.get(url)
        for what, run in named.items():
            asked = [(page.path, {"run": run}) for page in all_pages()] + [
                ("/", {"run": run, "node": node}) for node in ("dedup", "pretrain")
            ]
            for path, parameters in asked:
                taken, before = [], processor_s(pid)
                for _ in range(ROUNDS):
                    start = time.perf_counter()
                    client.get(path, params=parameters).raise_for_status()
                    taken.append(time.perf_counter() - start)
                shown = f"{path}?{urlencode(parameters)}".replace(run, what)
                print(
                    f"{shown:<34}{taken[0]:>8.2f} s{statistics.median(taken):>8.2f} s{(processor_s(pid) - before) / ROUNDS:>10.2f} s",
                    flush=True,
                )


def processor_s(pid: int) -> float:
    """The seconds of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
