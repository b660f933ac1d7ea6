"""`make bench`: every comparison with a peer in one table, then the record at scale. The data stages need real data (tests/made/real.py)."""

from __future__ import annotations

import importlib
import subprocess
import sys

from flows.cli.printing import print_table
from tests.bench.probe import probe
from tests.made.real import real_folder

PARTS = ("bench_extract", "bench_engines", "bench_filter", "bench_dedup", "bench_decontaminate")


def main() -> int:
    print(probe())
    if real_folder().is_dir():
        print_table([row for part in PARTS for row in importlib.import_module(f"tests.bench.{part}").rows()])
    else:
        print("there is no real data on this machine: the data stages are left out")
    print(probe())
    return subprocess.run([sys.executable, "-m", "tests.bench.index"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
