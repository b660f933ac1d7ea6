"""Averages of the last weights: `python -m tests.bench.quality.averages`, about 8 CPU minutes for a training of 1.5 M tokens.

Trains the contestant "loam, Muon" with milestones and evaluates the mean of the weights of its last checkpoints. Bits per byte are those of
`python -m tests.bench.quality`, of the exported model in fp32. `--change 'schedule={name: wsd, decay_frac: 0.1}'` tries another schedule.
A finished training is kept below --folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.cli.printing import print_table
from stages.training.checkpoints.checkpoint import consolidate
from stages.training.checkpoints.snapshot_folders import milestones
from tests.bench.probe import probe
from tests.bench.quality.__main__ import Wanted, parsed_changes, require_precision, train
from tests.bench.quality.contestants import Trial
from tests.bench.quality.epochs import NAME, ensemble_nats, exported
from tests.bench.quality.wikitext import prepare


def main() -> int:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quality.averages")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-quality"), help="where finished trainings are kept")
    parser.add_argument("--tokens", type=int, default=1_500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every-steps", type=int, default=6, help="steps between two checkpoints")
    parser.add_argument("--last", type=int, nargs="+", default=[1, 2, 3, 5, 10], help="how many checkpoints are averaged")
    parser.add_argument("--change", action="append", default=[], metavar="NAME=VALUE", help="another setting")
    options = parser.parse_args()
    changes = {**parsed_changes(options.change), "milestone_every_steps": options.every_steps}
    require_precision(changes)
    print(probe(), flush=True)
    folder = options.folder.resolve()
    corpus = prepare(folder / "corpus")
    wanted = Wanted(NAME, options.tokens, options.seed, json.dumps(changes))
    if train([wanted], corpus, folder, together=1):
        return 1
    print_table(rows(Trial(corpus, wanted.tokens, wanted.seed, wanted.folder(folder, corpus), changes), options.last))
    print(probe())
    return 0


def rows(trial: Trial, last: Sequence[int]) -> list[dict[str, Any]]:
    """The table of a finished trial: bits per byte of the mean of its last 1, 2, … checkpoints. Those that it has too few of are left out."""
    out = trial.folder / "out"
    checkpoints = [*sorted(milestones(out).iterdir()), out / "checkpoint"]
    return [
        {
            "checkpoints": number, "the first of them": checkpoints[-number].name,
            "bits per byte": f"{trial.corpus.bits_per_byte(ensemble_nats([exported(trial, mean(checkpoints[-number:]))], trial)):.4f}",
        }
        for number in last if number <= len(checkpoints)
    ]  # fmt: skip


def mean(checkpoints: Sequence[Path]) -> dict[str, Any]:
    """The mean of the weights of checkpoints, by name."""
    found = [consolidate(one) for one in checkpoints]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


if __name__ == "__main__":
    sys.exit(main())
