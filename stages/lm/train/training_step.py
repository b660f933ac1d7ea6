"""One optimizer step: the sequences of the global batch, their gradients over all micro-batches, and the update that the guard admits.

Guarantee: losses do not depend on how the global batch is divided over ranks and micro-batches (tested). A loss or gradient that is not
finite never reaches the weights (lm/train/step_guard.py).
Cost: two all-reduces of a few numbers per step, compared with a plain loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.lm.ranks.heartbeat import Activity
from stages.lm.ranks.stop_request import stop_requested
from stages.lm.train.rank_run import Run, TrainingError, forward
from stages.lm.train.step_guard import fault

RESERVED = {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s", "units", "skipped"}


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
    dealt = run.sequences_of_step(step).reshape(-1, engine.ranks, micro)[:, engine.rank]
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
        loss, metrics = forward(run, batch)
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


def _some(sequences: np.ndarray) -> str:
    listed = ", ".join(str(int(sequence)) for sequence in sequences.flatten()[:16])
    return listed + (" …" if sequences.size > 16 else "")
