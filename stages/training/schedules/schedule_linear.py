"""The linear schedule: a straight line from the peak to the final rate.

Source: Bergsma et al., "Straight to Zero" (arXiv 2502.15938), who find it better than cosine if the final rate is 0 (min_lr_frac).
"""

from __future__ import annotations

from typing import Literal

from stages.record.settings import Field
from stages.training.schedules.schedule import Schedule


class LinearDecay(Schedule):
    """A straight line from the peak to the final rate."""

    name: Literal["linear"] = Field("linear", decides=True)
    """Name of the schedule."""

    def shape(self, done: float) -> float:
        """Return the rate on a scale from 0 to 1; see Schedule.shape."""
        return 1.0 - done
