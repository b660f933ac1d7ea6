"""Does the best learning rate stay when the model grows? `python -m tests.bench.quality.rates`, about an hour of one core.

Models with the shape of the dial (`pretrain.model.depth`) at four depths are trained on the text of this benchmark, at rates a factor of the
square root of two apart. Tokens, batch, warm-up and schedule are the same at every depth, those of the benchmark if not given. A larger model thus sees fewer tokens
per parameter, and far fewer than the dial would give it: the table compares sizes, and does not say which rate is best after 20 tokens per parameter.
A parabola in the logarithm of the rate is fitted by least squares to the lowest bits per byte of a depth and the two rates on each side. Its lowest
point is the best rate. The interval is that of 95 %, from the residuals of the fit: it assumes that a parabola is the right curve, and that
trainings of one depth scatter alike. A depth whose trainings do not decide it has no best rate: give more rates.
Trainings are kept below --folder, as in `python -m tests.bench.quality`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.cli.printing import print_table
from flows.trials.sweep.isoflop import LowestPoint, ends, lowest_point
from stages.training.model.dial import dial_values
from stages.training.optimizers.optimizer_muon import Muon
from tests.bench.probe import probe
from tests.bench.quality.__main__ import Wanted, parsed_changes, require_precision, train
from tests.bench.quality.contestants import BATCH_TOKENS
from tests.bench.quality.wikitext import CONTEXT, VOCABULARY, Corpus, prepare

RATES = tuple(round(0.02 * 2 ** (power / 2), 4) for power in range(2, 8))


def changes(depth: int, rate: float, sequences: int) -> dict[str, Any]:
    """The shape and the momentum of the dial at a depth, with a rate and a batch, as changes of the contestant."""
    shape = {one.key: one.value for one in dial_values(depth, VOCABULARY, CONTEXT, {}) if one.key.startswith("model.")}
    return {**shape, "optimizer.momentum": Muon().momentum, "learning_rate": rate, "global_batch_size": sequences}


def main() -> int:
    """Trains what is missing and prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quality.rates")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-quality"), help="where finished trainings are kept")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument(
        "--rates", type=float, nargs="+", default=list(RATES), help="at least four, a factor of the square root of two apart"
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=BATCH_TOKENS // CONTEXT, help="sequences per step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--change", action="append", default=[], metavar="NAME=VALUE", help="another setting")
    parser.add_argument("--together", type=int, default=2, help="trainings at once")
    options = parser.parse_args()
    given = parsed_changes(options.change)
    require_precision(given)
    print(probe(), flush=True)
    folder = options.folder.resolve()
    corpus = prepare(folder / "corpus")
    wanted = {
        (depth, rate): Wanted("loam, Muon", options.tokens, options.seed, json.dumps({**changes(depth, rate, options.batch), **given}))
        for depth in options.depths for rate in options.rates
    }  # fmt: skip
    failed = train(list(wanted.values()), corpus, folder, options.together)
    found = {depth: measured(wanted, depth, folder, corpus) for depth in options.depths}
    print(f"{corpus.described['name']}, {options.tokens:,} tokens, {options.batch} sequences per step, seed {options.seed}: bits per byte")
    print_table([{"depth": depth, **{f"{rate:g}": f"{bits:.4f}" for rate, bits in values.items()}} for depth, values in found.items()])
    best = {depth: lowest_point(values) for depth, values in found.items()}
    print_table([row(depth, own, best.get(options.depths[-1])) for depth, own in best.items()])
    print(probe())
    return int(failed)


def measured(wanted: Mapping[tuple[int, float], Wanted], depth: int, folder: Path, corpus: Corpus) -> dict[float, float]:
    """Rate -> bits per byte of the finished trainings of a depth."""
    files = {rate: one.folder(folder, corpus) / "result.json" for (of, rate), one in wanted.items() if of == depth}
    return {rate: json.loads(file.read_text())["bits_per_byte"] for rate, file in sorted(files.items()) if file.exists()}


def row(depth: int, best: LowestPoint | str, largest: LowestPoint | str | None) -> dict[str, Any]:
    """The best rate of a depth as a row. largest: that of the last depth, with which it is compared."""
    shown = {"depth": depth, "best rate": "", "95 %": "", "bits per byte there": "", "against the last depth": ""}
    if isinstance(best, str):
        return shown | {"best rate": f"none: {best}"}
    low, high = best.ends
    shown |= {"best rate": f"{best.position:.4f}", "95 %": f"{low:.4f} to {high:.4f}", "bits per byte there": f"{best.value:.4f}"}
    if isinstance(largest, LowestPoint) and best != largest:
        # The halves of independent estimates, added in squares: an approximation of Welch's interval, which needs the standard errors.
        low, high = ends(best.position / largest.position, math.hypot(best.half_width, largest.half_width))
        shown["against the last depth"] = f"{best.position / largest.position:.2f} ({low:.2f} to {high:.2f})"
    return shown


if __name__ == "__main__":
    sys.exit(main())
