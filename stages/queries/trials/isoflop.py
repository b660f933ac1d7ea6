"""Compares sizes of model at equal FLOPs: the size with the lowest loss at each budget of a sweep, and the chart.

Guarantee: a best size lies between sizes that were trained, and says nothing about sizes beyond them.
Source: Hoffmann et al. 2022 (arXiv 2203.15556), approach 2 (IsoFLOP profiles).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from stages.queries.trials.parabola import lowest_point
from stages.queries.trials.scaling_fit import STYLE, Interval, MeasuredLoss

Budgets = Mapping[float, Sequence[MeasuredLoss]]
"""Budget in FLOPs -> the trainings with this budget."""


@dataclass(frozen=True)
class BestSize:
    """The size with the lowest loss at a budget.

    Attributes:
        flops: The budget.
        sizes: Number of sizes that were trained.
        parameters: The best size with its 95 % interval; None if no size with a larger one on each side has the lowest loss, or of fewer than four.
        tokens: Tokens that a model of this size is trained on; None without a size.
        loss: Loss of the fitted parabola there, in nats per token; None without a size.
    """

    flops: float
    sizes: int
    parameters: Interval | None
    tokens: int | None
    loss: float | None


def best_sizes(budgets: Budgets) -> list[BestSize]:
    """Returns the best size at each budget. The fit is over the means of the trainings of a size."""
    import numpy as np

    found = []
    for budget, trainings in sorted(budgets.items()):
        losses = mean_losses(trainings)
        lowest = lowest_point(losses)
        if lowest is None:
            found.append(BestSize(budget, len(losses), None, None, None))
            continue
        pairs = sorted({(one.parameters, one.tokens) for one in trainings})
        sizes, tokens = np.log([size for size, _ in pairs]), np.log([read for _, read in pairs])
        read = math.exp(float(np.interp(math.log(lowest.position), sizes, tokens)))
        found.append(BestSize(budget, len(losses), Interval(lowest.position, *lowest.ends), round(read), lowest.value))
    return found


def mean_losses(trainings: Sequence[MeasuredLoss]) -> dict[float, float]:
    """Returns parameters -> mean loss over the trainings of this size, in the order of the sizes."""
    losses: dict[float, list[float]] = {}
    for one in trainings:
        losses.setdefault(one.parameters, []).append(one.loss)
    return {size: fmean(losses[size]) for size in sorted(losses)}


def isoflop_chart(name: str, budgets: Budgets) -> str:
    """Returns an SVG of the mean loss over log10 of the parameters, one line per budget; "" without trainings.

    Args:
        name: Name of the sweep, for the title.
        budgets: The trainings by budget.
    """
    from stages.text.web.chart import line_chart

    lines = {
        f"{budget:.3g} FLOPs": [(math.log10(size), loss) for size, loss in mean_losses(trainings).items()]
        for budget, trainings in sorted(budgets.items())
    }
    return line_chart(lines, f"{name}: loss at equal FLOPs", "log10 of parameters", "nats per held-out token").replace(">", f">{STYLE}", 1)
