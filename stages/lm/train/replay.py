"""Makes of a training job one that trains some of its steps again, from a checkpoint of the training to a later step.

Guarantee: the job has the fingerprint of the training, so its learning rates, its order and its guard are those of the training. It goes on as
a training that was killed after the checkpoint. It publishes nothing: the ranks stop after the last step, with a snapshot.
Cost: copies the metrics lines up to the checkpoint.
The module imports torch only when a job is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stages.lm.measures.metrics import MetricLine
from stages.lm.train.job import RankJob


def replayed(job: RankJob, checkpoint: Path | None, first_step: int, last_step: int, lines: Sequence[MetricLine]) -> RankJob:
    """Returns the job that trains the steps `first_step` to `last_step` (both included, from 1), after preparing its scratch folder.

    After it ran, the checkpoint of the last step is in the snapshot of that step.

    Args:
        job: The job of the whole training. Its scratch folder must be the replay's own, and empty of snapshots.
        checkpoint: Milestone of the training after the step before `first_step`; None for the job's own start.
        first_step: The first step.
        last_step: The last step.
        lines: The lines of the training's metrics file.
    """
    from stages.lm.checkpoints import snapshots

    scratch = Path(job.scratch)
    if checkpoint:
        snapshots.root(scratch).mkdir(parents=True, exist_ok=True)
        (snapshots.root(scratch) / snapshots.name_of(first_step - 1)).symlink_to(checkpoint.absolute(), target_is_directory=True)
        before = (json.dumps(line) + "\n" for line in lines if line["step"] < first_step)
        (scratch / "metrics.jsonl").write_text("".join(before))
    return replace(job, validation=None, samples=None, stop_after=last_step)
