"""Learning rate over steps: linear warm-up, then a cosine down to a fraction of the peak.

Guarantee: pure; step 0 already trains (rate peak / warmup_steps), the last step ends at the minimum.
Source: Loshchilov and Hutter (arXiv 1608.03983) as Llama 3 uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """peak: learning rate after warm-up. min_frac: the final rate as a fraction of the peak. steps: the whole run."""

    peak: float
    min_frac: float
    warmup_steps: int
    steps: int

    def rate(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        span = max(1, self.steps - 1 - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / span)
        low = self.peak * self.min_frac
        return low + (self.peak - low) * 0.5 * (1.0 + math.cos(math.pi * done))
