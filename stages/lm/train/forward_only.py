"""Forward passes without training: the mean loss over the validation sequences, and the log-probabilities that a scoring job writes.

Guarantee: all ranks make the same number of forward passes, because they gather parameters together.
Cost: the forward passes; one sum over the ranks per evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.lm.data.reader import Batch, SequenceReader, padded_passes
from stages.lm.measures.step_figures import bits_per_byte
from stages.lm.model.loss import segment_log_probs, to_torch
from stages.lm.model.loss_dpo import DpoLoss
from stages.lm.ranks.events import EventWriter, SequencesScored
from stages.lm.ranks.heartbeat import Activity
from stages.lm.train.job import RankJob
from stages.lm.train.rank_run import Run, forward
from stages.lm.train.starting_weights import load
from stages.lm.zero.engine import Engine


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(run: Run) -> dict[str, float | None]:
    """Returns the mean loss and metrics over the validation sequences; empty without such sequences.

    It reads at most max_validation_sequences, evenly spaced over all. Every rank runs the same number of forward passes, because all ranks
    gather parameters together.
    """
    if run.job.validation is None:
        return {}
    run.engine.ds_engine.eval()
    sequences = SequenceReader(run.job.validation)
    sums: dict[str, Tensor] = {"loss": torch.zeros((), dtype=torch.float64, device=run.engine.device)}
    units = bytes_ = 0
    count = min(len(sequences), run.settings.max_validation_sequences)
    chosen = np.arange(count) * len(sequences) // count
    for batch in _own_batches(sequences, chosen, run.engine, run.job.machine.eval_batch_size, run.loss.trim_to):
        run.events.heartbeat.reach(Activity.EVALUATING)
        loss, metrics = forward(run, to_torch(batch, run.engine.device))
        units += run.loss.units(batch)
        bytes_ += 0 if run.token_bytes is None else batch.target_bytes(run.token_bytes)
        for name, value in {"loss": loss, **metrics}.items():
            sums[name] = sums.get(name, 0.0) + value.double()
    names = sorted(sums)
    total, of_targets, *found = run.engine.reduce([float(units), float(bytes_), *(sums[n] for n in names)])
    totals = dict(zip(names, found, strict=True))
    means: dict[str, float | None] = {n: v / max(total, 1.0) for n, v in totals.items()}
    means |= bits_per_byte(run, totals["loss"], totals, of_targets, trains=False)
    return {f"validation_{n}": v for n, v in means.items()} | {"validation_units": total}


@torch.no_grad()  # type: ignore[untyped-decorator]
def score(job: RankJob, engine: Engine, events: EventWriter) -> None:
    """Writes the log-probabilities of both segments of every sequence, under the weights of init_from, to log_probs-<rank>.npy in scratch.

    Columns: sequence (number of the sequence), chosen, rejected, chosen tokens, rejected tokens; float64.
    """
    load(job, engine, events)
    engine.ds_engine.eval()
    reader = SequenceReader(job.train)
    found = []
    for batch in _own_batches(reader, np.arange(len(reader)), engine, job.machine.eval_batch_size, DpoLoss.trim_to):
        events.heartbeat.reach(Activity.SCORING)
        moved = to_torch(batch, engine.device)
        score = partial(segment_log_probs, batch=moved, segments=2)
        values = engine.ds_engine(moved.tokens, moved.positions, moved.bounds, score).double().cpu().numpy()
        counts = np.stack([((batch.docs == segment) & (batch.labels >= 0)).sum(1) for segment in (0, 1)], 1)
        real = batch.sequences >= 0
        found.append(np.concatenate([batch.sequences[:, None], values, counts], 1)[real])
        if engine.rank == 0:
            events.write(SequencesScored(int(sum(len(f) for f in found)) * engine.ranks, len(reader)))
    np.save(Path(job.scratch) / f"log_probs-{engine.rank}.npy", np.concatenate(found))
    engine.barrier()


def _own_batches(reader: SequenceReader, sequences: np.ndarray, engine: Engine, batch_size: int, trim_to: int) -> Iterator[Batch]:
    """Yields this rank's batches of the sequences, in order. Padding (sequence -1) gives all ranks the same number of batches."""
    for block in padded_passes(sequences, engine.ranks, batch_size):
        yield reader.batch(block[engine.rank], trim_to)
