"""A toy: a power of the straight line from the peak to the final rate. CONTRIBUTING.md shows it as the example of a new schedule."""

from __future__ import annotations

from typing import Literal

from stages.record.settings import Field
from stages.training.schedules.schedule import Schedule


class Polynomial(Schedule):
    """A power of the straight line from the peak to the final rate."""

    name: Literal["polynomial"] = Field("polynomial", decides=True)
    """Name of the schedule."""
    power: float = Field(2.0, gt=0, le=10, decides=True)
    """Exponent; 1 is the straight line."""

    def shape(self, done: float) -> float:
        """See Schedule.shape."""
        return float((1.0 - done) ** self.power)
