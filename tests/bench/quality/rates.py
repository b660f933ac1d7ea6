"""Does the best learning rate stay when the model grows? `python -m tests.bench.quality.rates`, about an hour of one core.

Models with the shape of the dial (`pretrain.model.depth`) at four depths are trained on the text of this benchmark, at rates a factor of the
square root of two apart. Tokens, batch, warm-up and schedule are those of the benchmark at every depth. A larger model thus sees fewer tokens
per parameter, and far fewer than the dial would give it: the table compares sizes, and does not say which rate is best after 20 tokens per parameter.
A parabola in the logarithm of the rate is fitted by least squares to the lowest bits per byte of a depth and the two rates on each side. Its lowest
point is the best rate. The interval is that of 95 %, from the residuals of the fit: it assumes that a parabola is the right curve, and that
trainings of one depth scatter alike. A depth whose lowest training is at an end of the grid has no best rate: give more rates.
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

RATES = tuple(round(0.02 * 2 ** (power / 2), 4) for power in range(2, 8))
NEAR = 2
"""Rates on each side of the lowest that the fit uses."""
STUDENT_95 = {1: 12.71, 2: 4.30}
"""Two-sided 95 % points of Student's t by degrees of freedom."""


@dataclass(frozen=True)
class BestRate:
    """The lowest point of a parabola: rate, half the interval of 95 % of its logarithm, and the bits per byte there."""

    rate: float
    half: float
    bits_per_byte: float

    @property
    def ends(self) -> tuple[float, float]:
        """The interval of 95 %."""
        return self.rate * math.exp(-self.half), self.rate * math.exp(self.half)


def best_rate(found: Mapping[float, float]) -> BestRate | None:
    """The best rate of a depth; None if the lowest of these is at an end or too near one, or if the fit has no lowest point between the rates.

    Args:
        found: Rate -> bits per byte.
    """
    rates = sorted(found)
    at = rates.index(min(found, key=lambda rate: found[rate]))
    rates = rates[max(0, at - NEAR) : at + NEAR + 1]
    x, y = np.log(rates), np.array([found[rate] for rate in rates])
    freedom = len(x) - 3
    if freedom < 1 or found[rates[-1]] == y.min() or found[rates[0]] == y.min():
        return None
    x -= (centre := x.mean())
    design = np.stack([np.ones_like(x), x, x**2], 1)
    values, *_ = np.linalg.lstsq(design, y, rcond=None)
    _, slope, curvature = values
    if curvature <= 0 or not x[0] <= (lowest := -slope / (2 * curvature)) <= x[-1]:
        return None
    covariance = float(((design @ values - y) ** 2).sum()) / freedom * np.linalg.inv(design.T @ design)
    gradient = np.array([0, -1 / (2 * curvature), slope / (2 * curvature**2)])
    error = math.sqrt(float(gradient @ covariance @ gradient))
    return BestRate(math.exp(centre + lowest), STUDENT_95[freedom] * error, float(values @ np.array([1, lowest, lowest**2])))


def changes(depth: int, rate: float) -> dict[str, Any]:
    """The shape of the dial at a depth, with a rate, as changes of the contestant."""
    shape = {one.key: one.value for one in dial_values(depth, VOCABULARY, CONTEXT, {}) if one.key.startswith("model.")}
    return {**shape, "learning_rate": rate}


def main() -> int:
    """Trains what is missing and prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quality.rates")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-quality"), help="where finished trainings are kept")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument(
        "--rates", type=float, nargs="+", default=list(RATES), help="at least four, a factor of the square root of two apart"
    )
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
    print_table([row(depth, best_rate(values), best_rate(found[options.depths[-1]])) for depth, values in found.items()])
    print(probe())
    return int(failed)


def measured(wanted: Mapping[tuple[int, float], Wanted], depth: int, folder: Path, corpus: Corpus) -> dict[float, float]:
    """Rate -> bits per byte of the finished trainings of a depth."""
    files = {rate: one.folder(folder, corpus) / "result.json" for (of, rate), one in wanted.items() if of == depth}
    return {rate: json.loads(file.read_text())["bits_per_byte"] for rate, file in sorted(files.items()) if file.exists()}


def row(depth: int, best: BestRate | None, largest: BestRate | None) -> dict[str, Any]:
    """The best rate of a depth as a row. largest: that of the last depth, with which it is compared."""
    if best is None:
        return {"depth": depth, "best rate": "at an end of the grid", "95 %": "", "bits per byte there": "", "against the last depth": ""}
    shown = ""
    if largest and best != largest:
        # Two estimates with few degrees of freedom each; the quadratic sum of the halves is a little wider than Welch's interval.
        ratio, half = best.rate / largest.rate, math.hypot(best.half, largest.half)
        shown = f"{ratio:.2f} ({ratio * math.exp(-half):.2f} to {ratio * math.exp(half):.2f})"
    low, high = best.ends
    return {
        "depth": depth, "best rate": f"{best.rate:.4f}", "95 %": f"{low:.4f} to {high:.4f}", "bits per byte there": f"{best.bits_per_byte:.4f}",
        "against the last depth": shown,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
