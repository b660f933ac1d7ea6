"""`make bench`: every comparison of the data stages in one table, then training, then the record and traces at scale.

The data stages need real data (tests/made/real.py). Training has tables of its own (tests/bench/train).
"""

from __future__ import annotations

import importlib
import subprocess
import sys

from flows.cli.printing import print_table
from tests.bench.probe import probe
from tests.made.real import real_folder

PARTS = ("bench_extract", "bench_engines", "bench_filter", "bench_dedup", "bench_decontaminate", "bench_encode")


def main() -> int:
    print(probe())
    if real_folder().is_dir():
        print_table([row for part in PARTS for row in importlib.import_module(f"tests.bench.{part}").rows()])
    else:
        print("there is no real data on this machine: the data stages are left out")
    print(probe(), flush=True)
    parts = ("tests.bench.train", "tests.bench.index", "tests.bench.bench_trace")
    codes = [subprocess.run([sys.executable, "-m", part], check=False).returncode for part in parts]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
