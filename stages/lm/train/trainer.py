"""The training loop of pretraining, SFT and DPO, which differ only in their loss.

In each step, the order gives the sequences of the global batch. They are divided over ranks and micro-batches. The trainer divides the sum
of the loss by the units of the *whole* global batch, and makes one ZeRO-3 step.
Guarantee: losses do not depend on how the global batch is divided (tested). A run that was killed at any point continues from its last
snapshot with the same curve. A loss or gradient that is not finite never reaches the weights (lm/train/step_guard.py).
Cost: two all-reduces of a few numbers per step, compared with a plain loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.lm.data.order import Order
from stages.lm.data.reader import Batch, SequenceReader
from stages.lm.model.llama import initial_value
from stages.lm.model.loss import Loss, segment_log_probs, to_torch
from stages.lm.model.loss_dpo import DpoLoss
from stages.lm.ranks import snapshots
from stages.lm.ranks.heartbeat import Activity
from stages.lm.ranks.stop_request import stop_requested
from stages.lm.train import checkpoint
from stages.lm.train.engine import Engine, assign, partition_sizes
from stages.lm.train.events import Evaluated, EventWriter, SequencesScored, StepDone
from stages.lm.train.job import RankJob
from stages.lm.train.metrics import MetricsFile, open_metrics, read_metrics
from stages.lm.train.step_guard import StepHistory, fault, history
from stages.lm.train.training_settings import TrainingSettings

RESERVED = {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s", "units", "skipped"}


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
        start: Steps done before this process started.
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
        return s.schedule.rate(step, peak=s.learning_rate, min_frac=s.min_lr_frac, warmup_steps=s.warmup_steps, steps=self.job.steps)

    @property
    def snapshots(self) -> Path:
        """The folder of the snapshots."""
        return Path(self.job.scratch) / "resume"


def train(job: RankJob, engine: Engine, events: EventWriter) -> None:
    """Trains from the last snapshot to the end and writes the final checkpoint into job.out."""
    settings = job.training
    start = load(job, engine, events)
    events.write(partition_sizes(engine))
    metrics = open_metrics(Path(job.scratch) / "metrics.jsonl", start) if engine.rank == 0 else None
    run = open_run(job, engine, events, metrics, start)
    if start == 0:
        _report(run, Evaluated(0, evaluate(run)))
    clock = time.monotonic()
    for step in range(start, job.steps):
        engine.set_learning_rate(run.learning_rate(step))
        values, stops = train_step(run, step)
        now = time.monotonic()
        values |= {"lr": run.learning_rate(step), "tokens_per_s": (values["tokens"] or 0.0) / (now - clock)}
        clock = now
        last = step + 1 == job.steps
        _report(run, StepDone(step + 1, values))
        if job.validation and (last or (settings.eval_every_steps and (step + 1) % settings.eval_every_steps == 0)):
            _report(run, Evaluated(step + 1, evaluate(run)))
            clock = time.monotonic()
        if last or stops or (settings.checkpoint_every_steps and (step + 1) % settings.checkpoint_every_steps == 0):
            save(run, step + 1)
            clock = time.monotonic()
        if stops and not last:
            if engine.rank == 0:
                events.log(f"stops after step {step + 1}, with a snapshot")
            return
    finish(run)


def open_run(job: RankJob, engine: Engine, events: EventWriter, metrics: MetricsFile | None, start: int) -> Run:
    """Returns a run after `start` steps; see `Run`. The order, the reader and the history follow from the job and the metrics of those steps."""
    settings = job.training
    earlier = (line for line in read_metrics(Path(job.scratch) / "metrics.jsonl") if line["step"] <= start) if start else ()
    order = Order(job.phases, job.seed, settings.global_batch_size)
    return Run(job, engine, settings, order, SequenceReader(job.train), events, metrics, start, history(settings.guard, earlier))


def load(job: RankJob, engine: Engine, events: EventWriter) -> int:
    """Returns the finished steps, after setting the weights from the last undamaged snapshot, else from job.init_from, else from the seed."""
    events.heartbeat.reach(Activity.LOADING)
    tick = events.heartbeat.tick
    with ExitStack() as stack:
        found = snapshots.newest_good(engine, Path(job.scratch) / "resume", job.fingerprint(), events.log, tick)
        if found:
            folder, trainer = found
            assign(engine, _ticking(checkpoint.opened(folder, stack, trainer), tick), trainer.optimizer_steps)
            if engine.rank == 0:
                events.log(f"continues from step {trainer.step} (written by {trainer.ranks} ranks)")
        elif job.init_from:
            assign(engine, _ticking(checkpoint.reader(Path(job.init_from), stack, engine.rank, engine.ranks, tick), tick))
        else:
            shapes = {name: tuple(param.ds_shape) for name, param in engine.named.items()}
            values = checkpoint.from_values(lambda name: initial_value(name, shapes[name], job.model, job.seed))
            assign(engine, _ticking(values, tick))
    return found[1].step if found else 0


def train_step(run: Run, step: int) -> tuple[dict[str, float | None], bool]:
    """Makes one optimizer step over global batch `step`.

    Returns:
        (the mean loss per unit, the gradient norm, whether the update was skipped, the number of tokens, and the mean metrics per unit, over all
        ranks; None for a value that is not finite; whether all ranks stop after the step).

    Raises:
        TrainingError: The batch has no unit to train on, a metric has a reserved name, or the guard ends the training.
    """
    engine = run.engine
    run.events.heartbeat.reach(Activity.READING, step + 1)
    micro = run.job.machine.micro_batch_size
    dealt = run.order.sequences_of_step(step).reshape(-1, engine.ranks, micro)[:, engine.rank]
    batches = []
    for micro_batch in dealt:
        batches.append(run.sequences.batch(micro_batch, run.loss.trim_to))
        run.events.heartbeat.tick()
    local = [float(sum(run.loss.units(b) for b in batches)), float(sum((b.docs >= 0).sum() for b in batches))]
    run.events.heartbeat.reach(Activity.TRAINING)
    units, tokens = engine.reduce(local)
    if units == 0:
        raise TrainingError(f"Step {step + 1} has no token to train on; its sequences are {_some(dealt)}.")
    engine.deep.train()
    losses, sums = [], []
    for number, batch in enumerate(batches):
        run.events.heartbeat.reach(Activity.TRAINING)
        loss, metrics = _forward(run, batch)
        engine.deep.backward(loss * (engine.ranks / units), scale_wrt_gas=False)
        if number + 1 < len(batches):
            engine.deep.step()
        losses.append(loss.detach())
        sums.append(metrics)
    names = list(sums[0])
    if taken := RESERVED & set(names):
        raise TrainingError(f"The loss {run.loss.name} names a metric {', '.join(sorted(taken))}, which every step has already.")
    asked = engine.rank == 0 and stop_requested(Path(run.job.scratch))
    *totals, stops = engine.reduce([sum(losses), *(sum(s[n] for s in sums) for n in names), float(asked)])
    norm, skipped = _update(run, step, totals[0] / units, list(zip(dealt, losses, strict=True)))
    values = {"loss": _finite(totals[0] / units), "grad_norm": _finite(norm), "skipped": float(skipped)}
    run.history.add(values["loss"], values["grad_norm"], skipped)
    means = {n: _finite(v / units) for n, v in zip(names, totals[1:], strict=True)}
    return {**values, "tokens": tokens, **means}, stops > 0


def _update(run: Run, step: int, loss: float, own: Sequence[tuple[np.ndarray, Tensor]]) -> tuple[float, bool]:
    """Makes the update of a step, or skips it where the guard says so.

    Args:
        run: The run.
        step: The step, from 0.
        loss: Mean loss of the step over all ranks.
        own: This rank's micro-batches: their sequences and the sum of their loss.

    Returns:
        (gradient norm before clipping, whether the update was skipped).

    Raises:
        TrainingError: Loss or gradients are out of the ordinary, and the guard does not skip such a step, or has skipped too many.
    """
    guard, past = run.settings.guard, run.history
    of_loss = fault(guard, "loss", loss, past.losses)

    def judged(norm: float) -> str:
        return of_loss or fault(guard, "gradient norm", norm, past.norms)

    norm = run.engine.update(lambda norm: bool(judged(norm)))
    if not (why := judged(norm)):
        return norm, False
    named = [int(sequence) for sequences, found in own if math.isfinite(loss) or not torch.isfinite(found) for sequence in sequences]
    where = f"Step {step + 1}: {why}" + (f"; sequences {_some(np.array(named))}." if named else ".")
    if guard.action == "fail":
        raise TrainingError(where, named)
    if past.skips_in_a_row == guard.max_skips_in_a_row:
        before = f"The {past.skips_in_a_row} steps before it were skipped too, as many as guard.max_skips_in_a_row allows."
        raise TrainingError(f"{where} {before}", named)
    run.events.log(f"skipped: {where}")
    return norm, True


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(run: Run) -> dict[str, float]:
    """Returns the mean loss and metrics over the validation sequences; empty without such sequences.

    It reads at most max_validation_sequences, evenly spaced over all. Every rank runs the same number of forward passes, because all ranks
    gather parameters together.
    """
    if run.job.validation is None:
        return {}
    run.engine.deep.eval()
    sequences = SequenceReader(run.job.validation)
    sums: dict[str, Tensor] = {"loss": torch.zeros((), dtype=torch.float64, device=run.engine.device)}
    units = 0
    count = min(len(sequences), run.settings.max_validation_sequences)
    chosen = np.arange(count) * len(sequences) // count
    for batch in _own_batches(sequences, chosen, run.engine, run.job.machine.eval_batch_size, run.loss.trim_to):
        run.events.heartbeat.reach(Activity.EVALUATING)
        loss, metrics = _forward(run, batch)
        units += run.loss.units(batch)
        for name, value in {"loss": loss, **metrics}.items():
            sums[name] = sums.get(name, 0.0) + value.double()
    names = sorted(sums)
    total, *totals = run.engine.reduce([float(units), *(sums[n] for n in names)])
    return {f"validation_{n}": v / max(total, 1.0) for n, v in zip(names, totals, strict=True)} | {"validation_units": total}


@torch.no_grad()  # type: ignore[untyped-decorator]
def score(job: RankJob, engine: Engine, events: EventWriter) -> None:
    """Writes the log-probabilities of both segments of every sequence, under the weights of init_from, to log_probs-<rank>.npy in scratch.

    Columns: sequence (number of the sequence), chosen, rejected, chosen tokens, rejected tokens; float64.
    """
    load(job, engine, events)
    engine.deep.eval()
    reader = SequenceReader(job.train)
    found = []
    for batch in _own_batches(reader, np.arange(len(reader)), engine, job.machine.eval_batch_size, DpoLoss.trim_to):
        events.heartbeat.reach(Activity.SCORING)
        moved = to_torch(batch, engine.device)
        score = partial(segment_log_probs, batch=moved, segments=2)
        values = engine.deep(moved.tokens, moved.positions, moved.bounds, score).double().cpu().numpy()
        counts = np.stack([((batch.docs == segment) & (batch.labels >= 0)).sum(1) for segment in (0, 1)], 1)
        real = batch.sequences >= 0
        found.append(np.concatenate([batch.sequences[:, None], values, counts], 1)[real])
        if engine.rank == 0:
            events.write(SequencesScored(int(sum(len(f) for f in found)) * engine.ranks, len(reader)))
    np.save(Path(job.scratch) / f"log_probs-{engine.rank}.npy", np.concatenate(found))
    engine.barrier()


def save(run: Run, step: int) -> None:
    """Writes a snapshot and deletes all but the last two."""
    run.events.heartbeat.reach(Activity.SAVING)
    if run.metrics:
        run.metrics.sync()
    checkpoint.save(run.engine, run.snapshots / snapshots.name_of(step), step, run.job.fingerprint(), run.events.heartbeat.tick)
    if run.engine.rank == 0:
        snapshots.prune(run.snapshots, step)


def finish(run: Run) -> None:
    """Links the files of the last snapshot into the artifact. Hard links keep the snapshot, so a kill here loses nothing."""
    run.events.heartbeat.reach(Activity.HANDING_OVER)
    if run.engine.rank == 0:
        source = run.snapshots / snapshots.name_of(run.job.steps)
        for path in sorted(source.rglob("*")):
            target = Path(run.job.out) / "checkpoint" / path.relative_to(source)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.hardlink_to(path)
    run.engine.barrier()


def _ticking(partition: Callable[[str, str, int, int], Tensor], tick: Callable[[], None]) -> Callable[[str, str, int, int], Tensor]:
    """Returns `partition` with a tick before each slice."""

    def ticking(name: str, what: str, begin: int, length: int) -> Tensor:
        tick()
        return partition(name, what, begin, length)

    return ticking


def _forward(run: Run, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    moved = to_torch(batch, run.engine.device)
    return run.engine.deep(moved.tokens, moved.positions, moved.bounds, lambda hidden, head: run.loss.sums(hidden, head, moved))  # type: ignore[no-any-return]


def _own_batches(reader: SequenceReader, sequences: np.ndarray, engine: Engine, batch_size: int, trim_to: int) -> Iterator[Batch]:
    """Yields this rank's batches of the sequences, in order. Padding (sequence -1) gives all ranks the same number of batches."""
    per_pass = batch_size * engine.ranks
    padded = np.full(-(-len(sequences) // per_pass) * per_pass, -1, np.int64)
    padded[: len(sequences)] = sequences
    for block in padded.reshape(-1, engine.ranks, batch_size):
        yield reader.batch(block[engine.rank], trim_to)


def _report(run: Run, event: StepDone | Evaluated) -> None:
    if run.metrics and event.metrics:
        run.metrics.write(event.step, event.metrics)
        run.events.write(event)


def _some(sequences: np.ndarray) -> str:
    listed = ", ".join(str(int(sequence)) for sequence in sequences.flatten()[:16])
    return listed + (" …" if sequences.size > 16 else "")
