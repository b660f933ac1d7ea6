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
FEWEST = 4
"""Rates without which a fitted parabola has no error."""


@dataclass(frozen=True)
class BestRate:
    """The lowest point of a parabola: rate, half the interval of 95 % of its logarithm, and the bits per byte there."""

    rate: float
    half: float
    bits_per_byte: float

    @property
    def ends(self) -> tuple[float, float]:
        """The interval of 95 %."""
        return around(self.rate, self.half)


def around(value: float, half: float) -> tuple[float, float]:
    """The ends of an interval of which half the width is known in the logarithm."""
    return value * math.exp(-half), value * math.exp(half)


def best_rate(found: Mapping[float, float]) -> BestRate | None:
    """The best rate of a depth; None of too few rates, if the lowest is at an end of them, or if the fit has no lowest point between them.

    Args:
        found: Rate -> bits per byte.
    """
    from scipy.stats import t

    if len(found) < FEWEST:
        return None
    rates = sorted(found)
    at = rates.index(min(found, key=lambda rate: found[rate]))
    if at in (0, len(rates) - 1):
        return None
    near = rates[max(0, at - NEAR) : at + NEAR + 1]
    x, y = np.log(near), np.array([found[rate] for rate in near])
    x -= (centre := x.mean())
    design = np.stack([np.ones_like(x), x, x**2], 1)
    values, *_ = np.linalg.lstsq(design, y, rcond=None)
    _, slope, curvature = values
    if curvature <= 0 or not x[0] <= (lowest := -slope / (2 * curvature)) <= x[-1]:
        return None
    freedom = len(x) - design.shape[1]
    covariance = float(((design @ values - y) ** 2).sum()) / freedom * np.linalg.inv(design.T @ design)
    gradient = np.array([0, -1 / (2 * curvature), slope / (2 * curvature**2)])
    error = math.sqrt(float(gradient @ covariance @ gradient))
    return BestRate(math.exp(centre + lowest), float(t.ppf(0.975, freedom)) * error, float(values @ np.array([1, lowest, lowest**2])))


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
    best = {depth: best_rate(values) for depth, values in found.items() if len(values) >= FEWEST}
    print_table([row(depth, own, best.get(options.depths[-1])) for depth, own in best.items()])
    print(probe())
    return int(failed)


def measured(wanted: Mapping[tuple[int, float], Wanted], depth: int, folder: Path, corpus: Corpus) -> dict[float, float]:
    """Rate -> bits per byte of the finished trainings of a depth."""
    files = {rate: one.folder(folder, corpus) / "result.json" for (of, rate), one in wanted.items() if of == depth}
    return {rate: json.loads(file.read_text())["bits_per_byte"] for rate, file in sorted(files.items()) if file.exists()}


def row(depth: int, best: BestRate | None, largest: BestRate | None) -> dict[str, Any]:
    """The best rate of a depth as a row. largest: that of the last depth, with which it is compared."""
    shown = {"depth": depth, "best rate": "at an end of the grid", "95 %": "", "bits per byte there": "", "against the last depth": ""}
    if best is None:
        return shown
    low, high = best.ends
    shown |= {"best rate": f"{best.rate:.4f}", "95 %": f"{low:.4f} to {high:.4f}", "bits per byte there": f"{best.bits_per_byte:.4f}"}
    if largest and best != largest:
        # The halves of independent estimates, added in squares: an approximation of Welch's interval, which needs the standard errors.
        low, high = around(best.rate / largest.rate, math.hypot(best.half, largest.half))
        shown["against the last depth"] = f"{best.rate / largest.rate:.2f} ({low:.2f} to {high:.2f})"
    return shown


if __name__ == "__main__":
    sys.exit(main())
