"""The objects of a training run on one rank, and what ends it with an error.

Guarantee: everything in it follows from the job and the metrics of the steps that were made.
Cost: reads the metrics file once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor

from stages.lm.data.order import Order
from stages.lm.data.reader import Batch, SequenceReader
from stages.lm.model.loss import Loss, to_torch
from stages.lm.ranks.events import EventWriter
from stages.lm.train.job import RankJob
from stages.lm.train.metrics import MetricsFile, read_metrics
from stages.lm.train.step_guard import StepHistory, history
from stages.lm.train.training_settings import TrainingSettings
from stages.lm.zero.engine import Engine


class TrainingError(RuntimeError):
    """Training cannot continue.

    Attributes:
        sequences: Sequences of the batch that caused the error; empty if none did.
    """

    def __init__(self, message: str, sequences: Sequence[int] = ()) -> None:
        """Creates the error from its message and the sequences of the batch."""
        super().__init__(message)
        self.sequences = list(sequences)


@dataclass(frozen=True)
class Run:
    """The objects that the training loop uses.

    Attributes:
        sequences: Reader of the training sequences.
        metrics: The metrics file; None on ranks other than 0.
        start: Steps done before this process started, with those of the run that the job continues.
        history: Losses and gradient norms of the last updates.
    """

    job: RankJob
    engine: Engine
    settings: TrainingSettings
    order: Order
    sequences: SequenceReader
    events: EventWriter
    metrics: MetricsFile | None
    start: int
    history: StepHistory

    @property
    def loss(self) -> Loss:
        """The loss of the settings."""
        return self.settings.loss

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        s = self.settings
        rate = s.schedule.rate(step, peak=s.learning_rate, min_frac=s.min_lr_frac, warmup_steps=s.warmup_steps, steps=self.job.steps)
        return self.job.continuation.rewarmed(step, rate)

    def sequences_of_step(self, step: int) -> np.ndarray:
        """Returns the sequences of a step, counted from 0: int64 [global_batch_size]."""
        return self.order.sequences_of_step(step - self.job.continuation.order_start)

    @property
    def snapshots(self) -> Path:
        """The folder of the snapshots."""
        return Path(self.job.scratch) / "resume"


def open_run(job: RankJob, engine: Engine, events: EventWriter, metrics: MetricsFile | None, start: int) -> Run:
    """Returns a run after `start` steps; see `Run`. The order, the reader and the history follow from the job and the metrics of those steps."""
    settings = job.training
    own = (
        (line for line in read_metrics(Path(job.scratch) / "metrics.jsonl") if line["step"] <= start)
        if start > job.continuation.step
        else ()
    )
    earlier = chain(read_metrics(Path(job.earlier)) if job.earlier else (), own)
    order = Order(job.phases, job.seed, settings.global_batch_size)
    return Run(job, engine, settings, order, SequenceReader(job.train), events, metrics, start, history(settings.guard, earlier))


def forward(run: Run, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the sum of the loss over a batch, and the sums of its metrics."""
    moved = to_torch(batch, run.engine.device)
    return run.engine.deep(moved.tokens, moved.positions, moved.bounds, lambda hidden, head: run.loss.sums(hidden, head, moved))  # type: ignore[no-any-return]
