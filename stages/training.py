"""The common body of the training stages: pretrain, sft and dpo prepare sequences, and this module does the rest.

It makes the job, runs its ranks, publishes the checkpoint with metrics and side tables, and imports models that were trained elsewhere.
Guarantee: settings and machine are checked before any sequence is prepared. An error of the ranks says what the user can do. The digest
of a checkpoint covers weights, shape and sequence order. It does not cover the metrics, because they contain clock values.
Cost: the training itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stages.continued_training import EARLIER, new_run, write_earlier
from stages.core.contract.declaration import Artifact, Context, ExternalFile, Importer, Outcome, RecordCounts, Summary
from stages.core.contract.errors import RecipeError, StageError
from stages.core.tables.training_tables import METRICS, SEQUENCE_SPANS, STEPS

if TYPE_CHECKING:
    import numpy as np

    from stages.continued_training import Trunk
    from stages.lm.data.order import Order, Phase
    from stages.lm.data.pairs import SequenceSegment
    from stages.lm.data.reader import SequenceFiles
    from stages.lm.model.config import ModelConfig
    from stages.lm.train.continuation import TrainedRun
    from stages.lm.train.job import Machine, RankJob
    from stages.lm.train.metrics import MetricLine
    from stages.lm.train.training_settings import TrainingSettings


@dataclass(frozen=True)
class Prepared:
    """The model and the data that a stage trains on.

    Attributes:
        model: Shape of the model.
        train: The training sequences.
        validation: The validation sequences; None for no evaluation.
        phases: The ranges of training sequences, in the order of training.
        init_from: Folder of the checkpoint to start from; empty starts from the seed.
        sequence_spans: part -> rows of the side table that says which record is in which sequence.
        trunk: The checkpoint that the training continues, or None.
    """

    model: ModelConfig
    train: SequenceFiles
    validation: SequenceFiles | None
    phases: tuple[Phase, ...]
    init_from: str = ""
    sequence_spans: Mapping[str, Sequence[SequenceSegment]] = field(default_factory=dict)
    trunk: Trunk | None = None


@dataclass(frozen=True)
class Trained:
    """A finished training run.

    Attributes:
        job: The job that ran.
        order: The order of the sequences.
        lines: The lines of the metrics file.
        sequence_spans: See `Prepared`.
        run: What decided its order and learning rates.
    """

    job: RankJob
    order: Order
    lines: Sequence[MetricLine]
    sequence_spans: Mapping[str, Sequence[SequenceSegment]]
    run: TrainedRun

    @property
    def own_steps(self) -> int:
        """The number of its own steps, without those of a run that it continues."""
        return self.job.steps - self.job.continuation.step

    @property
    def epochs(self) -> float:
        """The number of epochs over the training sequences in its own steps."""
        return round(self.own_steps / self.order.steps_per_epoch, 3)

    @property
    def tokens(self) -> int:
        """The number of tokens trained on."""
        return sum(int(line["tokens"]) for line in self.lines if "loss" in line)

    @property
    def final_loss(self) -> float:
        """The mean loss of the last step that has a finite one."""
        return float([line["loss"] for line in self.lines if line.get("loss") is not None][-1])

    @property
    def steps_skipped(self) -> int:
        """The number of steps whose update the guard left out."""
        return sum(bool(line["skipped"]) for line in self.lines if "loss" in line)

    def first_evaluation(self, name: str) -> float | None:
        """Returns a metric of the evaluation before the first step; None if it does not exist."""
        return next((line.get(name) for line in self.lines if "validation_loss" in line), None)

    def last_evaluation(self, name: str) -> float | None:
        """Returns a metric of the evaluation after the last step; None if it does not exist."""
        return next((line.get(name) for line in reversed(self.lines) if "validation_loss" in line), None)


def machine(ctx: Context) -> Machine:
    """Returns the ranks and the device for a training. Stages call it before they prepare any sequence.

    A runtime with GPUs that this machine does not have ends in a StageError.

    Args:
        ctx: The stage's context. Its runtime is the recipe's section; the machine is what a job carries of it to the ranks.
    """
    from stages.lm.train.job import Machine
    from stages.lm.train.training_run import refuse_missing_gpus

    runtime = ctx.runtime
    with _refusals(ctx, lambda sequences: ""):
        refuse_missing_gpus(runtime.gpus)
    return Machine(
        ranks=runtime.gpus or runtime.cpu_ranks,
        device="cuda" if runtime.gpus else "cpu",
        micro_batch_size=runtime.micro_batch_size,
        eval_batch_size=runtime.eval_batch_size,
        offload_optimizer=runtime.offload_optimizer,
        recompute=runtime.recompute,
        kernels=str(ctx.cache / "kernels") if _compiles(ctx) else "",
        stall_limit_s=runtime.stall_limit_s,
        stop_grace_s=runtime.stop_grace_s,
        keep_snapshots=runtime.keep_snapshots,
    )


def _compiles(ctx: Context) -> bool:
    """Returns whether ranks may compile. Without a compiler they do so only if the recipe says it, which is refused.

    Raises:
        StageError: The recipe says to compile, and something that torch's compiler needs is missing.
    """
    import os
    import shutil
    import sysconfig

    wanted = ctx.runtime.compile
    if wanted is False or (wanted is None and not ctx.runtime.gpus):
        return False
    compiler = os.environ.get("CXX", "g++")  # as torch's compiler chooses it
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = f"the C++ compiler {compiler}" if not shutil.which(compiler) else "" if header.is_file() else f"Python's header {header}"
    if not missing:
        return True
    if wanted:
        raise StageError(
            f"runtime.compile is true, but this machine does not have {missing}.",
            where=f"node {ctx.node}",
            do="Install it, or set runtime.compile=false.",
        )
    ctx.log(f"The model is not compiled, because this machine does not have {missing}; training takes longer.")
    return False


def train(
    settings: TrainingSettings, data: Prepared, machine: Machine, inputs: Mapping[str, Artifact], out: Path, ctx: Context,
    named: Callable[[list[int]], str] = lambda sequences: "",
) -> Trained:  # fmt: skip
    """Trains on prepared sequences. Without a full global batch, and when a rank fails, it ends in a StageError that says what to do.

    Args:
        settings: The stage's section of the recipe.
        data: The sequences, the model and the checkpoint to start from.
        machine: The result of `machine`.
        inputs: The artifacts that decide the sequences. Their digests are part of the fingerprint of snapshots.
        out: Folder in which `checkpoint/` is written.
        ctx: The stage's context.
        named: Numbers of sequences that cannot be trained on -> text that the error message adds after the node.

    Returns:
        The finished training, with the lines of its metrics file.
    """
    from stages.lm.data.order import Order
    from stages.lm.train.job import RankJob

    with _refusals(ctx, named):
        order = Order(data.phases, ctx.seed, settings.global_batch_size)
    identity, trunk = " ".join(inputs[role].manifest["digest"] for role in sorted(inputs)), data.trunk
    run = new_run(settings, trunk, identity, ctx.seed, data.model.max_position_embeddings, order)
    if trunk:
        goes_on = run.continuation.order_start < trunk.step
        sequences = "goes on" if goes_on else "starts at its first sequence, because data, seed or global_batch_size are others"
        ctx.log(f"continues {trunk.name} after step {trunk.step:,} of {run.steps:,}; the order of sequences {sequences}")
    job = RankJob(
        model=data.model, settings=settings, train=data.train, validation=data.validation, machine=machine, seed=ctx.seed,
        scratch=str(ctx.scratch), out=str(out), phases=data.phases, init_from=str(trunk.checkpoint) if trunk else data.init_from,
        earlier=str(write_earlier(settings, trunk, ctx.scratch / EARLIER)) if trunk else "", continuation=run.continuation, steps=run.steps,
        data_identity=f"{identity} {trunk.identity}" if trunk else identity,
    )  # fmt: skip
    return Trained(job, order, run_ranks(job, ctx, named), data.sequence_spans, run)


def run_ranks(job: RankJob, ctx: Context, named: Callable[[list[int]], str] = lambda sequences: "") -> Sequence[MetricLine]:
    """Runs a job on its ranks. A job that cannot run, or a rank that fails, ends in a StageError that says what the user can do.

    Args:
        job: The job, for training or scoring.
        ctx: The stage's context.
        named: See `train`.

    Returns:
        The lines of the metrics file, in order.
    """
    from stages.lm.train import training_run

    with _refusals(ctx, named):
        return training_run.run(job, ctx)


@contextmanager
def _refusals(ctx: Context, named: Callable[[list[int]], str]) -> Iterator[None]:
    """Turns errors of lm into an error of this node.

    Raises:
        StageError: It says where the error is and what the user can do.
    """
    from stages.lm.train import training_run

    try:
        yield
    except training_run.FAILED as error:
        where = f"node {ctx.node}" + named(getattr(error, "sequences", []))
        raise StageError(str(error), where=where, do=training_run.remedy(error, ctx.scratch)) from error


def publish(
    trained: Trained, out: Path, summary: Summary, record_counts: RecordCounts | None = None, identity: tuple[str, ...] = ()
) -> Outcome:
    """Writes model.json, metrics.jsonl, metrics.parquet, steps/ and sequence_spans/ next to the checkpoint.

    Args:
        trained: The result of `train`.
        out: The artifact's folder.
        summary: The stage's own figures. The function adds the metrics of the loss that the summary does not name.
        record_counts: Record counts, if the stage keeps or drops records.
        identity: The stage's own files that the digest covers.

    Returns:
        The stage's outcome. Its rows are the trained sequences.
    """
    from stages.lm.model.config import write_model_config
    from stages.lm.train import training_run

    job = trained.job
    write_model_config(job.model, out / "model.json")
    steps = training_run.trained_sequences(trained.order, job.steps, job.continuation)
    _write_tables(out, trained.lines, steps, trained.sequence_spans)
    spans = ("sequence_spans",) if trained.sequence_spans else ()
    milestones = ("milestones",) if job.milestones else ()
    return Outcome(
        rows=trained.own_steps * job.training.global_batch_size,
        tokens=trained.tokens,
        record_counts=record_counts,
        summary=_with_metrics(summary, trained),
        identity=("checkpoint", "model.json", "steps", *milestones, *spans, *identity),
    )


def _with_metrics(summary: Summary, trained: Trained) -> Summary:
    """Returns the summary with each metric of the loss that the stage does not report itself.

    With validation sequences, the values are those of the first and the last evaluation; without, that of the last step.
    """
    last = [line for line in trained.lines if "loss" in line][-1]
    added: dict[str, float | None] = {}
    for name in sorted(last.keys() - METRICS.columns.keys()):
        after = f"validation_{name}"
        if after in summary:
            continue
        if trained.job.validation is None:
            added[f"final_{name}"] = last[name]
        else:
            added |= {f"{after}_before": trained.first_evaluation(after), after: trained.last_evaluation(after)}
    return {**summary, **added}


def _write_tables(
    out: Path, lines: Sequence[MetricLine], steps: Iterable[Mapping[str, np.ndarray]], spans: Mapping[str, Sequence[SequenceSegment]]
) -> None:
    from stages.core.tables.parquet import schema, write_columns, write_rows
    from stages.lm.train import training_run

    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_rows(
        out / "metrics.parquet", schema(**training_run.metric_columns(lines, METRICS.types)), training_run.metric_rows(lines, METRICS.types)
    )
    write_columns(out / "steps" / "00000.parquet", schema(**STEPS.types), steps)
    for part, rows in spans.items():
        write_rows(out / "sequence_spans" / f"{part}.parquet", schema(**SEQUENCE_SPANS.types), rows)


def _import_model(files: tuple[ExternalFile, ...], out: Path, ctx: Context) -> Outcome:
    """Imports a model that was trained elsewhere as a checkpoint with empty step and metric tables.

    Returns:
        The outcome of a checkpoint without training. Its rows are the parameters.

    Raises:
        RecipeError: The files are not one model that our decoder can represent.
    """
    from stages.lm.infer.import_model import import_checkpoint

    found = {file.name: file for file in files}
    weights = [Path(file.uri) for file in files if file.name.endswith(".safetensors")]
    if "config.json" not in found or not weights or len(found) < len(files):
        raise RecipeError(
            "A model is config.json and safetensors files of one folder.", where=files[0].uri, do="Name the folder of a Hugging Face model."
        )
    try:
        figures = import_checkpoint(Path(found["config.json"].uri), weights, out)
    except ValueError as error:
        raise RecipeError(str(error), where=str(Path(found["config.json"].uri).parent), do="Only such a model can be trained on.") from None
    _write_tables(out, [], [], {})
    tokenizer = {"tokenizer_sha256": found["tokenizer.json"].sha256} if "tokenizer.json" in found else {}
    none = {"steps": 0, "tokens": 0, "epochs": 0.0, "flops": 0.0, "ranks": 0}
    return Outcome(
        rows=figures["parameters"],
        unit="parameters",
        summary={**none, **figures, **tokenizer},
        identity=("checkpoint", "model.json", "steps"),
    )


IMPORT_MODEL = Importer(("config.json", "*.safetensors", "tokenizer.json"), _import_model)
"""Imports a Hugging Face model folder as a checkpoint. It only records the tokenizer's hash, for comparison with the pipeline's."""
