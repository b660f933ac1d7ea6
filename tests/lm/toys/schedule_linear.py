"""A toy: a straight line from the peak to the final rate. CONTRIBUTING.md shows it as the example of a new schedule."""

from __future__ import annotations

from typing import Literal

from stages.lm.train.schedule import Schedule
from stages.settings import Field


class Linear(Schedule):
    """A straight line from the peak to the final rate, after a plateau."""

    name: Literal["linear"] = Field("linear", decides=True)
    """Name of the schedule."""
    plateau_frac: float = Field(0.0, ge=0, lt=1, decides=True)
    """Share of the steps after warm-up that stay at the peak."""

    def shape(self, done: float) -> float:
        """See Schedule.shape."""
        return 1.0 if done < self.plateau_frac else (1.0 - done) / (1.0 - self.plateau_frac)
