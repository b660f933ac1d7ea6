"""Decides between the gradients and the update of a step.

Guarantee: a gradient norm that is not finite is NaN for whoever decides, whatever mark DeepSpeed uses for it.
Cost: none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class UpdateGate:
    """Decides between the gradients and the update of a step.

    Attributes:
        refuses: Gradient norm before clipping -> whether the update is left out.
        norm: Gradient norm of the last step; NaN if a gradient was not finite.
    """

    refuses: Callable[[float], bool] = math.isnan
    norm: float = math.nan

    def closed(self, norm: float) -> bool:
        """Returns whether the update of a step with this gradient norm is left out, and keeps the norm."""
        self.norm = norm if norm >= 0 and math.isfinite(norm) else math.nan
        return self.refuses(self.norm)
