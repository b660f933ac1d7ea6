"""`python -m tests.mutation`: the mutation suite. Exit 1 when more than 5 % of the sample survive, 2 when it cannot start."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from tests.mutation.suite import LIMIT, SuiteError, equivalents, report, run_suite
from tests.mutation.table import TABLE, TableError, list_tests

PROJECT = Path(__file__).resolve().parents[2]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Changes single lines of the code and asks the tests.")
    parser.add_argument("--sample", type=int, default=400, help="mutants to try (default 400; all when there are fewer)")
    parser.add_argument("--seed", type=int, default=9, help="of the sample (default 9)")
    parser.add_argument("--modules", nargs="+", default=list(TABLE), metavar="MODULE", help="for example stages/record/store/key")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="mutants at a time (default 2)")
    parser.add_argument("--out", type=Path, help="write the result as JSON to this file")
    chosen = parser.parse_args(words)
    if unknown := [name for name in chosen.modules if name not in TABLE]:
        parser.error(f"no such module: {', '.join(unknown)}; there are {', '.join(TABLE)}")
    if chosen.sample < 1 or chosen.jobs < 1:
        parser.error("--sample and --jobs are at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does, it leaves no copy of the tree behind
    try:
        tests = {f"{name}.py": list_tests(PROJECT, name) for name in chosen.modules}
        result = run_suite(PROJECT, tests, chosen.sample, chosen.seed, chosen.jobs, lambda line: print(line, flush=True), equivalents())
    except (SuiteError, TableError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(report(result))
    return int(result["rate"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
