"""The schedule warm-up, stable, decay (WSD): the peak rate up to a decay at the end of the run.

Guarantee: before the decay, the rate does not depend on the number of steps. Runs of different lengths therefore share their first steps,
up to where the shortest of them begins its decay.
Source: MiniCPM (arXiv 2404.06395); Hägele et al. (arXiv 2405.18392) for the shapes of the decay and its length.
"""

from __future__ import annotations

import math
from typing import Literal

from stages.record.settings import Field
from stages.training.schedules.schedule import Schedule


class WarmupStableDecay(Schedule):
    """The peak rate up to a decay at the end of the run."""

    name: Literal["wsd"] = Field("wsd", decides=True)
    """Name of the schedule."""
    decay_frac: float = Field(0.2, ge=0, le=1, decides=True)
    """Share of all steps of the run that are the decay, rounded to whole steps, at least one; 0: no decay, so min_lr_frac has no effect.
    Source of 0.2: Hägele et al. (arXiv 2405.18392), where a decay of 20 % reaches the loss of cosine."""
    decay_shape: Literal["linear", "1-sqrt"] = Field("1-sqrt", decides=True)
    """Shape of the decay over its progress p: 1 - p or 1 - sqrt(p). Source of 1-sqrt: Hägele et al., the better of the two."""

    def decay_steps(self, steps: int, warmup_steps: int) -> int:
        """Return the length of the decay in steps; see Schedule.decay_steps."""
        return max(1, round(self.decay_frac * steps)) if self.decay_frac else 0

    def steps_before_decay(self, steps: int, warmup_steps: int) -> int:
        """Return the steps before the decay, 0 without one; see Schedule.steps_before_decay."""
        decay = self.decay_steps(steps, warmup_steps)
        return steps - decay if decay else 0

    def shape(self, done: float) -> float:
        """Return the rate on a scale from 0 to 1; see Schedule.shape."""
        return 1.0 - (math.sqrt(done) if self.decay_shape == "1-sqrt" else done)
