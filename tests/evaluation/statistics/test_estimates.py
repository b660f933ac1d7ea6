"""Means and ratios with their standard errors, against numpy and known values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stages.evaluation.statistics.estimates import mean, ratio


def test_mean_is_lm_evals() -> None:
    from lm_eval.api.metrics import mean as theirs
    from lm_eval.api.metrics import mean_stderr

    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    assert mean(np.array(values)) == (theirs(values), pytest.approx(mean_stderr(values), rel=1e-12))


def test_one_value_has_no_error() -> None:
    assert mean(np.array([3.0])) == (3.0, None)
    assert math.isnan(mean(np.array([]))[0])
    assert ratio(np.array([1.0]), np.array([2.0])) == (0.5, None)


def test_ratio_error_agrees_with_the_spread_of_repeated_samples() -> None:
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(800):
        below = rng.integers(50, 500, 60).astype(float)
        above = below * 0.7 + rng.normal(0, 20, 60)
        value, error = ratio(above, below)
        values.append(value)
        errors.append(error)
    assert abs(np.mean(errors) / np.std(values) - 1) < 0.1
