"""The cosine schedule: half a cosine from the peak to the final rate.

Source: Loshchilov and Hutter (arXiv 1608.03983) without restarts, as Llama 3 (arXiv 2407.21783) uses it.
"""

from __future__ import annotations

import math
from typing import Literal

from stages.record.settings import Field
from stages.training.schedules.schedule import Schedule


class Cosine(Schedule):
    """Half a cosine from the peak to the final rate."""

    name: Literal["cosine"] = Field("cosine", decides=True)
    """Name of the schedule."""

    def shape(self, done: float) -> float:
        """Return the rate on a scale from 0 to 1; see Schedule.shape."""
        return 0.5 * (1.0 + math.cos(math.pi * done))
