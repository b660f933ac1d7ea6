"""Runs one training or scoring job for a stage: checks the machine, passes on events, and converts metrics to tables.

Guarantee: a job that the machine cannot run is refused before any rank starts. After a run, the metrics file has every step once.
The module imports torch only to count the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stages.lm.data.order import Order, OrderError
from stages.lm.train.job import JobError, Machine, RankJob
from stages.lm.train.launch import LaunchError, launch
from stages.lm.train.metrics import read_metrics
from stages.lm.train.training_settings import TrainingSettings

FAILED = (JobError, LaunchError, OrderError)
"""The errors of `run`, `machine_of` and `Order`. Each message is a full sentence for the user."""

METRIC_COLUMNS = {
    "step": "int64", "tokens": "int64", "loss": "float64", "lr": "float64", "grad_norm": "float64", "tokens_per_s": "float64",
    "validation_loss": "float64",
}  # fmt: skip
"""Columns of every metrics.parquet. step counts finished steps, tokens is cumulative, validation_loss is null at steps without evaluation.
The columns of the loss's own metrics follow (see `metric_columns`)."""
NOT_METRICS = ("step", "validation_units")
LOG_EVERY_STEPS = 20


class RuntimeSettings(Protocol):
    """The part of the recipe's runtime that training reads."""

    @property
    def gpus(self) -> int: ...
    @property
    def cpu_ranks(self) -> int: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def eval_batch_size(self) -> int: ...
    @property
    def offload_optimizer(self) -> bool: ...
    @property
    def activation_checkpointing(self) -> bool: ...


class Listener(Protocol):
    """The part of a stage's context that training uses."""

    @property
    def progress(self) -> Callable[..., None]: ...
    @property
    def log(self) -> Callable[[str], None]: ...

    def child_environment(self) -> dict[str, str]: ...


def machine_of(runtime: RuntimeSettings) -> Machine:
    """Returns the ranks and the device of the runtime settings; raises JobError if the machine has fewer GPUs than runtime.gpus."""
    if runtime.gpus:
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found < runtime.gpus:
            raise JobError(
                f"The recipe trains on {runtime.gpus} GPUs, but this machine has {found or 'none'} that torch can use. "
                "Run it where the GPUs are, or set runtime.gpus=0 to train on the CPU."
            )
    return Machine(
        ranks=runtime.gpus or runtime.cpu_ranks,
        device="cuda" if runtime.gpus else "cpu",
        micro_batch_size=runtime.micro_batch_size,
        eval_batch_size=runtime.eval_batch_size,
        offload_optimizer=runtime.offload_optimizer,
        activation_checkpointing=runtime.activation_checkpointing,
    )


def run(job: RankJob, listener: Listener) -> list[dict[str, Any]]:
    """Runs a job on its ranks and returns the lines of the metrics file.

    Args:
        job: The job, for training or scoring.
        listener: Gets the events of the ranks as progress and log lines, and gives the ranks' environment.

    Raises:
        JobError: global_batch_size is not divisible by ranks × micro_batch_size.
        LaunchError: A rank failed.
        OSError: A rank failed because a disk is full or read-only.
    """
    if isinstance(job.settings, TrainingSettings):
        job.accumulation()

    def listen(rank: int, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "log":
            listener.log(f"rank {rank}: {event['text']}")
        elif kind == "partition" and rank == 0:
            share = event["held"] / event["parameters"]
            listener.log(f"{job.machine.ranks} ranks on {job.machine.device}, each holds {share:.1%} of {event['parameters']:,} parameters")
        elif kind == "scored":
            listener.progress(min(event["sequences"], event["total"]), event["total"], "sequences", "log-probabilities")
        elif kind in ("step", "eval"):
            _pass_on(job, listener, event)

    launch(job, listen, listener.child_environment())
    return read_metrics(Path(job.scratch) / "metrics.jsonl")


def remedy(error: Exception, scratch: Path) -> str:
    """Returns what the user can do about an error of `run`."""
    if isinstance(error, LaunchError):
        return f"The ranks' output is kept in {scratch}/rank-*.log; started again, the node goes on from its last snapshot."
    return "Change the setting it names, in the recipe or with --set."


def scores(job: RankJob) -> np.ndarray:
    """Returns the results of a scoring job by sequence: float64 [sequences, 4] (chosen, rejected, chosen tokens, rejected tokens)."""
    parts = [np.load(Path(job.scratch) / f"log_probs-{rank}.npy") for rank in range(job.machine.ranks)]
    together = np.concatenate(parts)
    return together[np.argsort(together[:, 0], kind="stable"), 1:]


def metric_columns(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the columns of metrics.parquet: METRIC_COLUMNS, then all other metrics of the lines in alphabetical order."""
    others = {name for line in lines for name in line} - METRIC_COLUMNS.keys() - {*NOT_METRICS}
    return METRIC_COLUMNS | dict.fromkeys(sorted(others), "float64")


def metric_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of metrics.parquet: one per step, with cumulative tokens and the evaluation after that step."""
    columns = metric_columns(lines)
    evaluated = {line["step"]: line for line in evaluations(lines)}
    rows, tokens = [], 0
    for line in lines:
        if "loss" in line:
            tokens += int(line["tokens"])
            values = {**evaluated.get(line["step"], {}), **line, "tokens": tokens}
            rows.append({name: values.get(name) for name in columns})
    return rows


def step_rows(order: Order, steps: int) -> list[dict[str, int]]:
    """Returns the rows of the steps side table: the sequence at every trained position. Steps count from 1, as in the metrics."""
    places = order.places(0, steps * order.global_batch_size)
    return [
        {"step": int(p) // order.global_batch_size + 1, "position": int(p), "sequence": int(s), "phase": int(f), "epoch": int(n)}
        for p, s, f, n in zip(places.position, places.sequence, places.phase, places.epoch, strict=True)
    ]


def evaluations(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the lines of evaluations, in order."""
    return [line for line in lines if "validation_loss" in line]


def _pass_on(job: RankJob, listener: Listener, event: dict[str, Any]) -> None:
    step = event["step"]
    if event["kind"] == "eval":
        listener.log(f"step {step}: validation loss {event['validation_loss']:.4f}")
        return
    note = f"loss {event['loss']:.4f}, lr {event['lr']:.2e}, {event['tokens_per_s']:.0f} tokens/s"
    listener.progress(step, job.steps, "steps", note)
    if step % LOG_EVERY_STEPS == 0 or step in (1, job.steps):
        listener.log(f"step {step}/{job.steps}: {note}, gradient norm {event['grad_norm']:.3f}")
