"""The checkpoints that a training's artifact holds: where that of a step is, and how many tokens had been trained on.

Cost: reading the list of files, and for tokens the metrics file.
The module does not import torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from stages.record.contract.declaration import Artifact
from stages.record.run.named_checkpoint import published_step
from stages.training.checkpoints.snapshot_folders import milestones, name_of
from stages.training.measures.metrics import read_metrics


def checkpoint_at(trained: Artifact, step: int) -> Path:
    """Returns the folder of the checkpoint that an artifact holds of one of its steps."""
    return trained.path / "checkpoint" if step == published_step(trained) else milestones(trained.path) / name_of(step)


def tokens_at(trained: Artifact, steps: Sequence[int]) -> list[int]:
    """Returns the tokens that had been trained on after each of some steps, with those of the runs that the training continues."""
    before = trained.summary.get("tokens_before", 0)
    made = [line for line in read_metrics(trained.path / "metrics.jsonl") if "loss" in line]
    totals = [*accumulate((int(line["tokens"]) for line in made), initial=before if isinstance(before, int) else 0)]
    return [totals[bisect_right(made, step, key=lambda line: int(line["step"]))] for step in steps]
