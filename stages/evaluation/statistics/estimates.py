"""Computes means and ratios with their standard errors.

Guarantee: the standard error of a mean is lm-eval's (sample standard deviation over root n). The standard error of a ratio of sums, such as
bits per byte over documents, is the usual linearised one.
Cost: negligible.
Source: Cochran 1977, section 2.11.
"""

from __future__ import annotations

import math

import numpy as np


def mean(values: np.ndarray) -> tuple[float, float | None]:
    """Returns (mean, standard error). The error is None for fewer than two values; the mean of no values is NaN."""
    values = np.asarray(values, dtype=np.float64)
    if values.size < 2:
        return float(values.mean()) if values.size else math.nan, None
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float, float | None]:
    """Returns (sum of `above` over sum of `below`, standard error over the pairs). The error is None for fewer than two pairs."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    value = float(above.sum() / below.sum())
    if above.size < 2:
        return value, None
    residual = above - value * below
    return value, float(math.sqrt(above.size / (above.size - 1) * (residual**2).sum()) / below.sum())
