"""Finds where a measured curve is lowest, by a parabola in the logarithm of the position.

Guarantee: a lowest point and its interval lie between measured positions. If the measurements do not decide it, there is none, with the reason.
The interval rests on two assumptions: near its lowest point the curve is a parabola, and the measurements scatter alike.
Source: Hoffmann et al. 2022 (arXiv 2203.15556), approach 2, for the best size at a number of FLOPs. They give no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

NEAR = 2
"""Measurements on each side of the lowest that the fit uses."""
FEWEST = 4
"""Measurements without which a fitted parabola has no error."""


@dataclass(frozen=True)
class LowestPoint:
    """The lowest point of a curve.

    Attributes:
        position: Where it is.
        half_width: Half the 95 % interval of the logarithm of the position.
        value: The value there.
    """

    position: float
    half_width: float
    value: float

    @property
    def ends(self) -> tuple[float, float]:
        """The 95 % interval of the position."""
        return ends(self.position, self.half_width)


def ends(position: float, half_width: float) -> tuple[float, float]:
    """Returns the ends of an interval around a position. half_width: half its width in the logarithm."""
    return position * math.exp(-half_width), position * math.exp(half_width)


def lowest_point(found: Mapping[float, float]) -> LowestPoint | str:
    """Returns the lowest point, or why there is none, in one phrase.

    A parabola is fitted by least squares to the lowest measurement and NEAR of them on each side.

    Args:
        found: Position, above 0 -> measured value.
    """
    import numpy as np
    from scipy.stats import t

    if len(found) < FEWEST:
        return f"fewer than {FEWEST} measurements"
    positions = sorted(found)
    at = positions.index(min(found, key=lambda position: found[position]))
    if at in (0, len(positions) - 1):
        return "the lowest is at an end"
    near = positions[max(0, at - NEAR) : at + NEAR + 1]
    x, y = np.log(near), np.array([found[position] for position in near])
    x -= (centre := x.mean())
    design = np.stack([np.ones_like(x), x, x**2], 1)
    values, *_ = np.linalg.lstsq(design, y, rcond=None)
    _, slope, curvature = values
    if not curvature > 0:
        return "the measurements do not decide it"
    lowest = float(-slope / (2 * curvature))
    freedom = len(x) - design.shape[1]
    covariance = float(((design @ values - y) ** 2).sum()) / freedom * np.linalg.inv(design.T @ design)
    gradient = np.array([0, -1 / (2 * curvature), slope / (2 * curvature**2)])
    half_width = float(t.ppf(0.975, freedom)) * math.sqrt(float(gradient @ covariance @ gradient))
    low, high = math.log(positions[0]) - centre, math.log(positions[-1]) - centre
    if not low <= lowest - half_width <= lowest + half_width <= high:
        return "the measurements do not decide it"
    return LowestPoint(math.exp(centre + lowest), half_width, float(values @ np.array([1, lowest, lowest**2])))
