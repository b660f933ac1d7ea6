"""The objects of a training run on one rank, and what ends it with an error.

Guarantee: everything in it follows from the job and the metrics of the steps that were made.
Cost: reads the metrics file once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.lm.checkpoints import snapshot_folders, snapshots
from stages.lm.checkpoints.rewinds import Rewind, read_rewinds
from stages.lm.checkpoints.snapshot_writer import SnapshotWriter
from stages.lm.data.order import Order
from stages.lm.data.prefetch import StepPrefetch
from stages.lm.data.reader import Batch, SequenceReader, padded_passes
from stages.lm.measures.metrics import MetricsFile, read_metrics
from stages.lm.model.loss import Loss, TorchBatch, on_host
from stages.lm.ranks.events import EventWriter
from stages.lm.train.job import RankJob
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


class SpikeError(TrainingError):
    """A step is out of the ordinary, and the guard says to go back. Where that is not possible, it ends the training.

    Attributes:
        step: The step, from 1.
        tokens: Tokens of its batch.
    """

    def __init__(self, message: str, sequences: Sequence[int], step: int, tokens: int) -> None:
        """Creates the error from its message, the sequences of the batch, the step and its tokens."""
        super().__init__(message, sequences)
        self.step, self.tokens = step, tokens


@dataclass(frozen=True)
class StagedBatch:
    """A micro-batch of one rank: as arrays, and as tensors on the host, pinned where the rank has a GPU."""

    batch: Batch
    tensors: TorchBatch


@dataclass(frozen=True)
class Run:
    """The objects that the training loop uses.

    Attributes:
        metrics: The metrics file; None on ranks other than 0.
        start: Steps done before this process started, with those of the run that the job continues.
        history: Losses and gradient norms of the last updates.
        writer: Writes the snapshots.
        upcoming: The micro-batches of each step of this rank, read one step ahead.
        token_bytes: UTF-8 bytes of each token id, int64 [V]; None if the job does not name them.
        rewinds: The rewinds that were decided before this process started.
    """

    job: RankJob
    engine: Engine
    settings: TrainingSettings
    order: Order
    events: EventWriter
    metrics: MetricsFile | None
    start: int
    history: StepHistory
    writer: SnapshotWriter
    upcoming: StepPrefetch[StagedBatch]
    token_bytes: np.ndarray | None
    rewinds: tuple[Rewind, ...]

    @property
    def loss(self) -> Loss:
        """The loss of the settings."""
        return self.settings.loss

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        s = self.settings
        warmup, steps = s.warmup_of(self.job.steps), self.job.steps
        rate = s.schedule.rate(step, peak=s.learning_rate, min_frac=s.min_lr_frac, warmup_steps=warmup, steps=steps)
        return self.job.continuation.rewarmed(step, rate)

    @property
    def snapshots(self) -> Path:
        """The folder of the snapshots."""
        return snapshot_folders.root(Path(self.job.scratch))


def open_run(job: RankJob, engine: Engine, events: EventWriter, metrics: MetricsFile | None, start: int) -> Run:
    """Returns a run after `start` steps; see `Run`. The order, the reader and the history follow from the job and the metrics of those steps."""
    settings = job.training
    own = (
        (line for line in read_metrics(Path(job.scratch) / "metrics.jsonl") if line["step"] <= start)
        if start > job.continuation.step
        else ()
    )
    past = history(settings.guard, chain(read_metrics(Path(job.earlier)) if job.earlier else (), own))
    order = Order(job.phases, job.seed)
    folder, rewinds = snapshot_folders.root(Path(job.scratch)), read_rewinds(Path(job.scratch), job.fingerprint())
    back = settings.guard.rewind_steps if settings.guard.action == "rewind" else 0

    def prune(step: int) -> None:
        snapshots.prune(folder, step, job.machine.keep_snapshots, job.milestones, back)

    writer = SnapshotWriter(engine, folder, job.fingerprint(), prune, events.heartbeat.tick, rewinds)
    token_bytes = np.load(job.token_bytes) if job.token_bytes else None
    return Run(job, engine, settings, order, events, metrics, start, past, writer, _upcoming(job, engine, order), token_bytes, rewinds)


def _upcoming(job: RankJob, engine: Engine, order: Order) -> StepPrefetch[StagedBatch]:
    """Returns the micro-batches of this rank by step. Only the thread uses the reader."""
    reader, trim_to, on_gpu = SequenceReader(job.train), job.training.loss.trim_to, job.machine.device == "cuda"

    def staged(sequences: np.ndarray, seq_len: int) -> StagedBatch:
        batch = reader.batch(sequences, trim_to, seq_len)
        return StagedBatch(batch, on_host(batch, pinned=on_gpu))

    def parts_of(step: int) -> list[Callable[[], StagedBatch]]:
        microbatch_indices = padded_passes(order.sequences_of_step(step), engine.ranks, job.machine.micro_batch_size)[:, engine.rank]
        return [partial(staged, sequences, order.phase_of(step).seq_len) for sequences in microbatch_indices]

    def begins() -> None:
        if on_gpu:
            torch.cuda.set_device(engine.device)  # a thread starts on the first GPU, and pinning would open it

    return StepPrefetch(parts_of, job.steps, begins)


def forward(run: Run, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the sum of the loss over a batch on the engine's device, and the sums of its metrics."""
    return run.engine.ds_engine(batch.tokens, batch.positions, batch.bounds, lambda hidden, head: run.loss.sums(hidden, head, batch))  # type: ignore[no-any-return]
