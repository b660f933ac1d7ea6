"""The ranges of sequences that a pretraining will read, as far as they are known before mix has packed them.

Guarantee: of a mixture that is built, its own ranges. Else those that the settings of mix announce: the sequences of a phase are counted as
full, which they are to less than a tenth of a percent, and the last range counts as endless.
Cost: reads one small file of a built mixture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stages.core.contract.declaration import Artifact

if TYPE_CHECKING:
    from stages.lm.data.phases import BatchSize, Phase, SequenceRange
    from stages.lm.train.training_settings import TrainingSettings

ENDLESS = 1 << 60


@dataclass(frozen=True)
class PlannedTraining:
    """The steps of a training from its first step on, and its tokens by the length of their sequences, at most."""

    steps: int
    tokens: Mapping[int, int]


def planned_ranges(mix: Any, built: Artifact | None = None) -> tuple[SequenceRange, ...]:
    """Returns the ranges in the order of training; at least one.

    Args:
        mix: The section of mix. It has seq_len, and phases if the mixture has several: with tokens, and with seq_len where it is another.
        built: The artifact of mix, or None.
    """
    from stages.lm.data.phases import SequenceRange

    if built is not None:
        found = json.loads((built.path / "mix.json").read_text())["ranges"]
        return tuple(SequenceRange(one["start_sequence"], one["sequences"], one["seq_len"]) for one in found)
    ranges, start = [], 0
    for phase in getattr(mix, "phases", ()):
        length = phase.seq_len or mix.seq_len
        ranges.append(SequenceRange(start, -(-phase.tokens // length), length))
        start += ranges[-1].sequences
    last = ranges.pop() if ranges else SequenceRange(0, 0, mix.seq_len)
    return (*ranges, SequenceRange(last.start_sequence, ENDLESS, last.seq_len))


def announced_phases(mix: Any, sizes: Sequence[BatchSize], several: bool) -> tuple[Phase, ...]:
    """Returns the phases of a training as the settings announce them. A range that is too short for a batch is an OrderError, a ValueError.

    Args:
        mix: The section of mix.
        sizes: The sequences per step, from which step on.
        several: Whether it reads the ranges of the mixture; else all its sequences have one length, the context.
    """
    from stages.lm.data.phases import phase_table, planned_phases

    return phase_table(planned_ranges(mix), sizes) if several else planned_phases(mix.seq_len, sizes)


def planned_training(settings: TrainingSettings, mix: Any, built: Artifact | None, before: int = 0) -> PlannedTraining:
    """Returns what a pretraining with a budget in steps or tokens reads. A range that is too short for a batch is an OrderError, a ValueError.

    Args:
        settings: The section of pretrain.
        mix: See `planned_ranges`.
        built: See `planned_ranges`.
        before: Steps of the training that it continues, which count as if they had the same batches and ranges.
    """
    from stages.lm.data.phases import phase_table, tokens_by_length

    phases = phase_table(planned_ranges(mix, built), settings.batch_sizes)
    steps = settings.budget.in_steps(phases)
    return PlannedTraining(steps, tokens_by_length(phases, before, steps))
