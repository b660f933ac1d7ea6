"""The base of the learning-rate schedules: linear warm-up to the peak, then the shape that a schedule gives.

Guarantee: pure; step 0 already trains (rate peak / warmup_steps). A new schedule is one file beside schedule_cosine.py and one line in
training_parts.py; CONTRIBUTING.md shows it. Source: the warm-up is that of Goyal et al. (arXiv 1706.02677).
"""

from __future__ import annotations

from abc import abstractmethod

from stages.settings import Field, StageConfig


class Schedule(StageConfig):
    """The learning rate over the steps of a run."""

    name: str = Field(decides=True)
    """Name of the schedule."""

    @abstractmethod
    def shape(self, done: float) -> float:
        """The rate between its final value (0) and its peak (1).

        Args:
            done: Share of the steps after warm-up that are done, from 0 at the first of them to 1 at the last step of the run.
        """

    def rate(self, step: int, *, peak: float, min_frac: float, warmup_steps: int, steps: int) -> float:
        """The learning rate of one step.

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
