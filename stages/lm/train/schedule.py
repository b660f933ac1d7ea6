"""The base class of the learning-rate schedules: linear warm-up to the peak, then the shape of the schedule.

To add a schedule, write one file next to schedule_cosine.py and one line in training_parts.py; CONTRIBUTING.md shows an example.
Guarantee: the rate is a pure function of step and settings. Step 0 already trains: with warm-up, its rate is peak / warmup_steps.
Source: Goyal et al. (arXiv 1706.02677) for the warm-up.
"""

from __future__ import annotations

from abc import abstractmethod

from stages.settings import Field, StageConfig


class Schedule(StageConfig):
    """The learning rate as a function of the step."""

    name: str = Field(decides=True)
    """Name of the schedule."""

    @abstractmethod
    def shape(self, done: float) -> float:
        """Returns the rate on a scale from 0 (final rate) to 1 (peak).

        Args:
            done: Progress after warm-up: 0 at the first step after warm-up, 1 at the last step of the run.
        """

    def rate(self, step: int, *, peak: float, min_frac: float, warmup_steps: int, steps: int) -> float:
        """Returns the learning rate of one step.

        Args:
            step: Counted from 0.
            peak: Learning rate after warm-up.
            min_frac: Final rate as a fraction of the peak.
            warmup_steps: Steps of linear warm-up.
            steps: Steps of the whole run.
        """
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        span = max(1, steps - 1 - warmup_steps)
        low = peak * min_frac
        return low + (peak - low) * self.shape(min(1.0, (step - warmup_steps) / span))
