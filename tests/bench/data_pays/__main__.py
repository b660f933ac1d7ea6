"""Does cleaning pay? `python -m tests.bench.data_pays`: one small model per corpus and seed, at equal tokens; about five CPU minutes each.

The corpora (arms.py) come from the shared crawl; each is cleaned further than the one before. The table has bits per byte of held-out
pages of the crawl, of WikiText-2 and of C4 (held_out.py): mean over seeds, the standard deviation, and the difference to the arm above with its
interval of 95 % over seeds (Welch). Seeds are those of the training alone, so the interval does not hold for other pages. Corpora and finished
trainings are kept below --folder; give another folder after a change of the code or of the files.
What the table cannot show: models of this size read less than the corpora hold, so no arm repeats a document because it has few. The held-out
pages are cleaned as the arms from "filtered" on are, which favours these; C4 is cleaned by others. The classifier learned from WikiText-2.
A token of the raw pages has fewer characters, because the tokenizer learned from the clean ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.cli.printing import print_table
from flows.trials.seeded_runs import build_missing, deciding_content, digest_of
from tests.bench.corpus import require_judged_pages
from tests.bench.data_pays.arms import ARMS, STEPS, UNTIL, Prepared, arm_session, prepare
from tests.bench.data_pays.held_out import bits_per_byte, other_texts
from tests.bench.probe import probe
from tests.made.real import real_folder


def main() -> int:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.data_pays")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-data-pays"), help="where corpora and finished trainings are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps of every arm")
    parser.add_argument("--together", type=int, default=2, help="trainings at once")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    require_judged_pages()
    folder: Path = options.folder.resolve()
    prepare(folder)
    prepared = Prepared(folder, options.steps)
    if options.one:
        measure(prepared, options.one[0], int(options.one[1]))
        return 0
    print(probe(), flush=True)
    failed = train(prepared, [(arm, seed) for seed in options.seeds for arm in options.arms], options.together)
    print(f"{options.steps} steps; {len(prepared.described['pages'])} held-out pages; {len(prepared.described['urls'])} URLs in no arm")
    print_table(table(prepared, options.arms, options.seeds))
    print(probe())
    return int(failed)


def result_file(prepared: Prepared, arm: str, seed: int) -> Path:
    """Where the bits per byte of a training are kept. Other settings have another file."""
    digest = digest_of(deciding_content(arm_session(prepared, arm, seed)))
    return prepared.folder / f"{arm}-{seed}-{digest}.json"


def measure(prepared: Prepared, arm: str, seed: int) -> None:
    """Trains one model and writes its bits per byte."""
    run = arm_session(prepared, arm, seed)
    model = build_missing(run, run.steps(UNTIL), f"{arm}, seed {seed}").artifacts[UNTIL]
    texts = {"held-out pages": prepared.described["pages"], **other_texts(real_folder())}
    result = result_file(prepared, arm, seed)
    unfinished = result.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(bits_per_byte(model.path, texts)) + "\n")
    unfinished.rename(result)


def train(prepared: Prepared, wanted: Sequence[tuple[str, int]], together: int) -> bool:
    """Runs the trainings that have no result yet, each in a process; returns whether one failed."""
    waiting = [one for one in wanted if not result_file(prepared, *one).exists()]
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    failed = False
    try:
        while waiting or running:
            while waiting and len(running) < together:
                arm, seed = waiting.pop(0)
                command = [sys.executable, "-m", "tests.bench.data_pays", "--folder", str(prepared.folder), "--one", arm, str(seed)]
                command += ["--steps", str(prepared.steps)]
                with (prepared.folder / f"{arm}-{seed}.log").open("wb") as log:
                    running[arm, seed] = subprocess.Popen(command, stdout=log, stderr=log)
            time.sleep(0.5)
            for (arm, seed), process in list(running.items()):
                if process.poll() is not None:
                    del running[arm, seed]
                    failed |= bool(process.returncode)
                    said = (prepared.folder / f"{arm}-{seed}.log").read_text(errors="replace")[-1500:] if process.returncode else "done"
                    print(f"{arm}, seed {seed}: {said}", flush=True)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return failed


def table(prepared: Prepared, arms: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per arm."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for arm in arms:
        files = [result_file(prepared, arm, seed) for seed in seeds]
        found[arm] = [json.loads(file.read_text()) for file in files if file.exists()]
    rows, before = [], ""
    for arm in (arm for arm in arms if found[arm]):
        row: dict[str, Any] = {
            "corpus": arm,
            "documents to choose from": f"{prepared.described['documents'][arm]:,}",
            "seeds": len(found[arm]),
        }
        for name in found[arm][0]:
            values = [result[name] for result in found[arm]]
            row[name] = with_spread(values)
            row[f"{name}, against the row above"] = difference([result[name] for result in found[before]], values) if before else ""
        rows.append(row)
        before = arm
    return rows


def with_spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return f"{statistics.mean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def difference(before: Sequence[float], values: Sequence[float]) -> str:
    """The difference of two means with its interval of 95 %, of independent seeds."""
    from scipy.stats import ttest_ind

    shown = f"{statistics.mean(values) - statistics.mean(before):+.3f}"
    if min(len(before), len(values)) < 2:
        return shown
    ends = ttest_ind(values, before, equal_var=False).confidence_interval(0.95)
    return f"{shown} ({ends.low:+.3f} to {ends.high:+.3f})"


if __name__ == "__main__":
    sys.exit(main())
