"""The training loop of pretraining, SFT and DPO, which differ only in their loss.

Guarantee: a run that was killed at any point continues from its last snapshot with the same curve.
Cost: see lm/train/training_step.py; between steps, evaluations and snapshots. At the end, the first rank reads the milestones once.
"""

from __future__ import annotations

import time
from pathlib import Path

from stages.lm.checkpoints import checkpoint, rewinds, snapshot_folders, snapshots
from stages.lm.measures.greedy_samples import continued_prompts
from stages.lm.measures.metrics import SAMPLED, open_metrics, read_metrics
from stages.lm.measures.step_figures import peak_of_ranks, speed
from stages.lm.ranks.events import Evaluated, EventWriter, Sampled, StepDone
from stages.lm.ranks.heartbeat import Activity
from stages.lm.train.forward_only import evaluate
from stages.lm.train.job import RankJob, TextSamples
from stages.lm.train.rank_run import Run, SpikeError, TrainingError, open_run
from stages.lm.train.starting_weights import load
from stages.lm.train.training_step import train_step
from stages.lm.zero.engine import Engine
from stages.lm.zero.engine_state import partition_sizes


def train(job: RankJob, engine: Engine, events: EventWriter) -> None:
    """Trains from the last snapshot to the end and writes the final checkpoint into job.out, or stops after `job.stop_after`.

    If the guard says to go back, it returns after this is on disk; the next start of the ranks goes on from there.

    Raises:
        SpikeError: A replay meets a spike that the training did not have.
    """
    settings = job.training
    start = load(job, engine, events)
    fresh = start == job.continuation.step  # no snapshot of this job was found
    events.write(partition_sizes(engine))
    metrics = open_metrics(Path(job.scratch) / "metrics.jsonl", 0 if fresh else start) if engine.rank == 0 else None
    run = open_run(job, engine, events, metrics, start)
    peak = peak_of_ranks(job, engine, events)  # before the first evaluation, which takes long in a precision that the CPU emulates
    if fresh:
        _report(run, Evaluated(start, evaluate(run)))
    milestones = frozenset(job.milestones)
    clock = time.monotonic()
    for step in range(start, job.steps):
        engine.set_learning_rate(run.learning_rate(step))
        try:
            done = train_step(run, step)
        except SpikeError as spike:
            if job.stop_after:
                raise  # a replay decides nothing
            go_back(run, spike)
            return
        now = time.monotonic()
        used = speed(job.model, run.order.phase_of(step).seq_len, peak, done.work, now - clock)
        values = done.metrics | {"lr": run.learning_rate(step), **used}
        clock = now
        if complaint := run.writer.complaint():
            events.log(complaint)
        last, stops = step + 1 == job.steps, done.stops or step + 1 == job.stop_after
        _report(run, StepDone(step + 1, values))
        if job.validation and (last or (settings.eval_every_steps and (step + 1) % settings.eval_every_steps == 0)):
            _report(run, Evaluated(step + 1, evaluate(run)))
            clock = time.monotonic()
        if job.samples and (last or (step + 1) % job.samples.every_steps == 0):
            _sample(run, job.samples, step + 1)
            clock = time.monotonic()
        due = settings.checkpoint_every_steps and (step + 1) % settings.checkpoint_every_steps == 0
        if last or stops or due or step + 1 in milestones:
            save(run, step + 1, wait=last or stops or step + 1 in milestones)
            clock = time.monotonic()
        if step + 1 == job.stop_after or (done.stops and not last):
            if engine.rank == 0:
                events.log(f"stops after step {step + 1}, with a snapshot")
            return
    finish(run)


def go_back(run: Run, spike: SpikeError) -> None:
    """Writes to disk that the step of a spike and the steps before it are left out. A snapshot that is being written is ended before."""
    run.events.heartbeat.reach(Activity.SAVING)
    run.writer.settle()
    if complaint := run.writer.complaint():
        run.events.log(complaint)
    job, scratch = run.job, Path(run.job.scratch)
    first = max(spike.step - run.settings.guard.rewind_steps, job.continuation.step + 1)
    if run.engine.rank == 0:
        left = [step for step in snapshot_folders.steps_in(run.snapshots) if job.continuation.step < step < first]
        back_to = max(left, default=job.continuation.step)
        made = [line["tokens"] for line in read_metrics(scratch / "metrics.jsonl") if "loss" in line and line["step"] > back_to]
        rewind = rewinds.Rewind(spike.step, first, str(spike), back_to, int(sum(made)) + spike.tokens)
        rewinds.write_rewinds(scratch, job.fingerprint(), [*run.rewinds, rewind])
    run.events.log(f"goes back: {spike} Steps {first} to {spike.step} are left out from now on.")
    run.engine.barrier()


def save(run: Run, step: int, wait: bool) -> None:
    """Begins to write a snapshot; with `wait` it returns when the snapshot is on disk. All but the milestones and the newest are deleted then."""
    run.events.heartbeat.reach(Activity.SAVING)
    if complaint := run.writer.start(step, run.metrics.sync if run.metrics else lambda: None):
        run.events.log(complaint)
    if wait:
        run.writer.finish()


def finish(run: Run) -> None:
    """Links the files of the milestones and of the last snapshot into the artifact. Hard links keep the snapshots, so a kill loses nothing.

    A milestone that was damaged after it was written ends in a TrainingError.
    """
    run.events.heartbeat.reach(Activity.HANDING_OVER)
    if run.engine.rank == 0:
        out = Path(run.job.out)
        for step in run.job.milestones:
            _refuse_damaged(run, step)
            name = snapshot_folders.name_of(step)
            snapshot_folders.link_tree(run.snapshots / name, snapshot_folders.milestones(out) / name)
        snapshot_folders.link_tree(run.snapshots / snapshot_folders.name_of(run.job.steps), out / "checkpoint")
    run.engine.barrier()


def _sample(run: Run, asked: TextSamples, step: int) -> None:
    ids = continued_prompts(run, asked)
    if run.metrics:
        run.metrics.write(step, {SAMPLED: ids})
        run.events.write(Sampled(step, ids))


def _refuse_damaged(run: Run, step: int) -> None:
    """Compares a milestone with its record: it may be days old. A damaged one is deleted with all later snapshots, to be made again.

    Raises:
        TrainingError: The milestone is damaged.
    """
    try:
        checkpoint.verify(run.snapshots / snapshot_folders.name_of(step), tick=run.events.heartbeat.tick)
    except checkpoint.CheckpointError as error:
        snapshots.discard_from(run.snapshots, step)
        raise TrainingError(
            f"The milestone of step {step} cannot be published, and it and all later snapshots were deleted: {error}"
        ) from error


def _report(run: Run, event: StepDone | Evaluated) -> None:
    if run.metrics and event.metrics:
        run.metrics.write(event.step, event.metrics)
        run.events.write(event)
