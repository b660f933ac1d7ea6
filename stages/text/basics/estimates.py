"""Means and ratios with their standard errors.

Guarantee: the standard error of a mean is lm-eval's (sample standard deviation over root n); that of a ratio of sums, such
as bits per byte over documents, is the usual linearised one. Cost: none to speak of. Source: Cochran 1977, section 2.11.
"""

from __future__ import annotations

import math

import numpy as np


def mean(values: np.ndarray) -> tuple[float, float | None]:
    """(mean, standard error); no error for fewer than two values."""
    values = np.asarray(values, dtype=np.float64)
    if values.size < 2:
        return float(values.mean()) if values.size else math.nan, None
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float | None]:
    """(sum of `above` over sum of `below`, standard error over the pairs)."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    value = float(above.sum() / below.sum())
    if above.size < 2:
        return value, None
    residual = above - value * below
    return value, float(math.sqrt(above.size / (above.size - 1) * (residual**2).sum()) / below.sum())
