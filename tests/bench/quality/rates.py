"""Does the best learning rate stay when the model grows? `python -m tests.bench.quality.rates`, about an hour of one core.

Models of the dial (`pretrain.model.depth`) of four depths are trained on the text of this benchmark at rates a factor of the square root of two
apart, all else as the dial and this benchmark have it. A parabola in the logarithm of the rate is fitted to the bits per byte of each depth by
least squares. Its lowest point is the best rate; the interval is that of 95 %, from the residuals of the fit (so it assumes that a
parabola is the right curve, and that trainings of one depth scatter alike). A best rate outside the grid is not believed: give more rates.
Trainings are kept below --folder, as in `python -m tests.bench.quality`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.cli.printing import print_table
from stages.lm.model.dial import dial_values
from tests.bench.probe import probe
from tests.bench.quality.__main__ import Wanted, train
from tests.bench.quality.wikitext import CONTEXT, VOCABULARY, Corpus, prepare

RATES = tuple(round(0.02 * 2 ** (power / 2), 4) for power in range(-1, 4))
STUDENT_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57}
"""Two-sided 95 % points of Student's t by degrees of freedom."""


@dataclass(frozen=True)
class BestRate:
    """The lowest point of a parabola: rate, the ends of its interval, and the bits per byte there. inside: whether the grid holds it."""

    rate: float
    low: float
    high: float
    bits_per_byte: float
    inside: bool


def best_rate(found: Mapping[float, float]) -> BestRate:
    """The best rate of a depth. found: rate -> bits per byte, of at least four rates."""
    x, y = np.log(sorted(found)), np.array([found[rate] for rate in sorted(found)])
    centre = x.mean()
    design = np.stack([np.ones_like(x), x - centre, (x - centre) ** 2], 1)
    values, *_ = np.linalg.lstsq(design, y, rcond=None)
    _, slope, curvature = values
    if curvature <= 0:
        edge = min(found, key=lambda rate: found[rate])
        return BestRate(edge, 0.0, math.inf, found[edge], inside=False)
    lowest = -slope / (2 * curvature)
    freedom = len(x) - 3
    variance = float(((design @ values - y) ** 2).sum()) / freedom
    covariance = variance * np.linalg.inv(design.T @ design)
    gradient = np.array([0, -1 / (2 * curvature), slope / (2 * curvature**2)])
    error = STUDENT_95[freedom] * math.sqrt(float(gradient @ covariance @ gradient))
    at = float(values @ np.array([1, lowest, lowest**2]))
    ends = math.exp(centre + lowest - error), math.exp(min(centre + lowest + error, 700))
    return BestRate(math.exp(centre + lowest), *ends, at, inside=bool(x[0] <= centre + lowest <= x[-1]))


def changes(depth: int, rate: float) -> dict[str, Any]:
    """The shape of the dial at a depth, with a rate, as changes of the contestant."""
    shape = {one.key: one.value for one in dial_values(depth, VOCABULARY, CONTEXT, {}) if one.key.startswith("model.")}
    return {**shape, "learning_rate": rate}


def main() -> int:
    """Trains what is missing and prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quality.rates")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-quality"), help="where finished trainings are kept")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--together", type=int, default=2, help="trainings at once")
    options = parser.parse_args()
    print(probe(), flush=True)
    folder = options.folder.resolve()
    corpus = prepare(folder / "corpus")
    wanted = {
        (depth, rate): Wanted("loam, Muon", options.tokens, options.seed, json.dumps(changes(depth, rate)))
        for depth in options.depths for rate in options.rates
    }  # fmt: skip
    failed = train(list(wanted.values()), corpus, folder, options.together)
    found = {depth: measured(wanted, depth, folder, corpus) for depth in options.depths}
    print(f"{corpus.described['name']}, {options.tokens:,} tokens, seed {options.seed}: bits per byte")
    print_table([{"depth": depth, **{f"{rate:g}": f"{bits:.4f}" for rate, bits in values.items()}} for depth, values in found.items()])
    print_table([row(depth, values) for depth, values in found.items() if len(values) > 3])
    print(probe())
    return int(failed)


def measured(wanted: Mapping[tuple[int, float], Wanted], depth: int, folder: Path, corpus: Corpus) -> dict[float, float]:
    """Rate -> bits per byte of the finished trainings of a depth."""
    files = {rate: one.folder(folder, corpus) / "result.json" for (of, rate), one in wanted.items() if of == depth}
    return {rate: json.loads(file.read_text())["bits_per_byte"] for rate, file in sorted(files.items()) if file.exists()}


def row(depth: int, values: Mapping[float, float]) -> dict[str, Any]:
    """The best rate of a depth as a row."""
    best = best_rate(values)
    return {
        "depth": depth, "best rate": f"{best.rate:.4f}" if best.inside else "outside the grid",
        "95 %": f"{best.low:.4f} to {best.high:.4f}" if best.inside else "", "bits per byte there": f"{best.bits_per_byte:.4f}",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
