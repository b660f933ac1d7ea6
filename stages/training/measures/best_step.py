"""The step of a training with the least validation loss, for `keep: best`.

Guarantee: it follows from the evaluations alone, so a training that was killed and goes on chooses the same step.
Cost: one pass over the evaluations. The module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from stages.training.measures.metrics import MetricLine


def best_step(evaluations: Iterable[MetricLine]) -> int | None:
    """Returns the step with the least validation loss, of equal ones the first; None where no trained step has a finite one.

    Args:
        evaluations: Lines of the metrics file; those without a validation loss do not count, nor does the evaluation before the first step.
    """
    found = [(line["validation_loss"], line["step"]) for line in evaluations if line.get("validation_loss") is not None and line["step"]]
    return min(((loss, step) for loss, step in found if math.isfinite(loss)), default=(0.0, None))[1]
