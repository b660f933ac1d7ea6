"""One optimizer step: the sequences of the global batch, their gradients over all micro-batches, and the update that the guard admits.

Guarantee: losses do not depend on how the global batch is divided over ranks and micro-batches (tested). A loss or gradient that is not
finite never reaches the weights (lm/train/step_guard.py).
Cost: compared with a plain loop, two sums of a few numbers over the ranks per step. The first is made on the host, because the gradients
are divided by the units of all ranks. The second waits for the device together with the gradient norm, in the gate of the update: once per
step, whatever the number of micro-batches (tested). Right after it, when the device has nothing left to do, DeepSpeed reads once more whether
the norm is finite. A step that records update ratios waits once more, and so do an evaluation and text samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.lm.checkpoints.rewinds import leaves_out
from stages.lm.measures.metrics import finite
from stages.lm.measures.step_figures import StepWork, bits_per_byte, peak_memory_bytes, work_of
from stages.lm.measures.update_ratio import LAYER_GROUPS, copied_weights, update_ratios
from stages.lm.ranks.heartbeat import Activity
from stages.lm.ranks.stop_request import stop_requested
from stages.lm.train.rank_run import Run, SpikeError, TrainingError, forward
from stages.lm.train.step_guard import fault

RESERVED = {
    "step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s", "units", "skipped", "bits_per_byte", "mfu", "mfu_by_segment",
    "peak_memory_bytes", *(f"update_ratio_{group}" for group in LAYER_GROUPS),
}  # fmt: skip


@dataclass(frozen=True)
class FinishedStep:
    """A finished step.

    Attributes:
        metrics: Over all ranks: the mean loss per unit, the gradient norm, whether the update was skipped, the number of tokens, bits per
            byte, memory, and the mean metrics of the loss per unit. None for a value that is not finite.
        work: What the batches of all ranks hold.
        stops: Whether all ranks stop after the step.
    """

    metrics: dict[str, float | None]
    work: StepWork
    stops: bool


def train_step(run: Run, step: int) -> FinishedStep:
    """Makes one optimizer step over global batch `step`.

    Returns:
        The finished step.

    Raises:
        TrainingError: The batch has no unit to train on, a metric has a reserved name, or the guard ends the training.
    """
    engine = run.engine
    run.events.heartbeat.reach(Activity.READING, step + 1)
    batches = run.upcoming.take(step, run.events.heartbeat.tick)
    microbatch_indices = np.stack([one.batch.sequences for one in batches])
    run.events.heartbeat.reach(Activity.TRAINING)
    work = work_of(run, [one.batch for one in batches])
    if work.units == 0:
        raise TrainingError(f"Step {step + 1} has no token to train on; its sequences are {_some(microbatch_indices)}.")
    engine.ds_engine.train()
    losses, sums = [], []
    for number, batch in enumerate(batches):
        run.events.heartbeat.reach(Activity.TRAINING)
        engine.ds_engine.set_gradient_accumulation_boundary(number + 1 == len(batches))  # their number changes from phase to phase
        loss, metrics = forward(run, batch.tensors.to(engine.device))
        engine.ds_engine.backward(loss * (engine.ranks / work.units), scale_wrt_gas=False)
        if number + 1 < len(batches):
            engine.ds_engine.step()
        losses.append(loss.detach())
        sums.append(metrics)
    names = list(sums[0])
    if taken := RESERVED & set(names):
        raise TrainingError(f"The loss {run.loss.name} names a metric {', '.join(sorted(taken))}, which every step has already.")
    asked = engine.rank == 0 and stop_requested(Path(run.job.scratch))
    memory = [float(peak_memory_bytes(engine.device)) if rank == engine.rank else 0.0 for rank in range(engine.ranks)]
    together = [sum(losses), *(sum(s[n] for s in sums) for n in names), float(asked), *memory]
    every = run.settings.update_ratio_every_steps
    before = copied_weights(engine) if every and (step + 1) % every == 0 else None
    norm, skipped, found = _update(run, step, work, together, list(zip(microbatch_indices, losses, strict=True)))
    loss, totals, (stops, *memory) = found[0], dict(zip(names, found[1:], strict=False)), found[1 + len(names) :]
    values = {"loss": finite(loss / work.units), "grad_norm": finite(norm), "skipped": float(skipped)}
    run.history.add(values["loss"], values["grad_norm"], skipped)
    values |= {"tokens": work.tokens, "peak_memory_bytes": max(memory), **bits_per_byte(run, loss, totals, work.bytes, trains=True)}
    if before is not None and not skipped:
        values |= update_ratios(engine, before)
    return FinishedStep(values | {n: finite(v / work.units) for n, v in totals.items()}, work, stops > 0)


def _update(
    run: Run, step: int, work: StepWork, together: Sequence[float | Tensor], own: Sequence[tuple[np.ndarray, Tensor]]
) -> tuple[float, bool, list[float]]:
    """Makes the update of a step, or skips it where the guard says so.

    Args:
        run: The run.
        step: The step, from 0.
        work: What the batches of all ranks hold.
        together: What is summed over the ranks; the sum of the loss comes first.
        own: This rank's micro-batches: their sequences and the sum of their loss.

    Returns:
        (gradient norm before clipping, whether the update was skipped, the sums over the ranks).

    Raises:
        TrainingError: Loss or gradients are out of the ordinary, and the guard does not skip such a step, or has skipped too many.
        SpikeError: They are, and the guard says to go back.
    """
    guard, past, skip_update = run.settings.guard, run.history, leaves_out(run.rewinds, step + 1)

    def judged(norm: float, sums: list[float]) -> str:
        return fault(guard, "loss", sums[0] / work.units, past.losses) or fault(guard, "gradient norm", norm, past.norms)

    norm, found = run.engine.update(together, lambda norm, sums: skip_update or bool(judged(norm, sums)))
    if skip_update or not (why := judged(norm, found)):
        return norm, skip_update, found
    loss = found[0]
    named = [int(sequence) for sequences, found in own if math.isfinite(loss) or not torch.isfinite(found) for sequence in sequences]
    where = f"Step {step + 1}: {why}" + (f"; sequences {_some(np.array(named))}." if named else ".")
    if guard.action == "fail":
        raise TrainingError(where, named)
    if guard.action == "rewind":
        if len(run.rewinds) < guard.max_rewinds:
            raise SpikeError(f"Step {step + 1}: {why}.", named, step + 1, int(work.tokens))  # recorded: not what one of the ranks read
        before = f"Training went back {len(run.rewinds)} times before, as often as guard.max_rewinds allows."
        raise TrainingError(f"{where} {before} `loam stage NODE RECIPE --blame {step + 1}` finds the documents that cause it.", named)
    if past.skips_in_a_row == guard.max_skips_in_a_row:
        before = f"The {past.skips_in_a_row} steps before it were skipped too, as many as guard.max_skips_in_a_row allows."
        raise TrainingError(f"{where} {before}", named)
    run.events.log(f"skipped: {where}")
    return norm, True, found


def _some(sequences: np.ndarray) -> str:
    listed = ", ".join(str(int(sequence)) for sequence in sequences.flatten()[:16])
    return listed + (" …" if sequences.size > 16 else "")
