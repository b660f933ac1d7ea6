"""The body that the training stages share: pretrain, sft and dpo prepare rows, everything else is here.

It makes the job, runs its ranks, publishes the checkpoint with metrics and side tables, and takes in models that were trained elsewhere.
Guarantee: settings and machine are checked before any row is prepared; an error of the ranks names what to do. The checkpoint's identity
is weights, shape and row order, never the metrics, which hold clock values. Cost: that of the training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.core.contract.declaration import Artifact, Context, ExternalFile, Importer, Outcome, RecordCounts
from stages.core.contract.errors import RecipeError, StageError
from stages.core.tables.training_tables import STEPS

if TYPE_CHECKING:
    from stages.lm.data.order import Order, Phase
    from stages.lm.data.reader import RowFiles
    from stages.lm.model.config import ModelConfig
    from stages.lm.train.job import Machine, RankJob
    from stages.lm.train.training_settings import TrainingSettings

Table = tuple[Mapping[str, str], Iterable[Mapping[str, Any]]]
"""(column -> type, rows)."""
Summary = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Prepared:
    """What a stage trains on.

    model: shape of the model. train, validation: the rows. phases: which rows, in which order. init_from: folder of the checkpoint to
    start from; empty starts from the seed. row_spans: part -> table of which record lies in which row.
    """

    model: ModelConfig
    train: RowFiles
    validation: RowFiles | None
    phases: tuple[Phase, ...]
    init_from: str = ""
    row_spans: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """A finished training. lines: those of the metrics file."""

    job: RankJob
    order: Order
    lines: list[dict[str, Any]]
    row_spans: Mapping[str, Table]

    @property
    def epochs(self) -> float:
        return round(self.job.steps / self.order.steps_per_epoch, 3)

    @property
    def tokens(self) -> int:
        return sum(int(line["tokens"]) for line in self.lines if "loss" in line)

    @property
    def final_loss(self) -> float:
        return float([line for line in self.lines if "loss" in line][-1]["loss"])

    def first_evaluation(self, name: str) -> float | None:
        """A metric of the evaluation before the first step; None where there is none."""
        return next((line.get(name) for line in self.lines if "validation_loss" in line), None)

    def last_evaluation(self, name: str) -> float | None:
        """A metric of the evaluation after the last step; None where there is none."""
        return next((line.get(name) for line in reversed(self.lines) if "validation_loss" in line), None)


def machine(ctx: Context) -> Machine:
    """The ranks and the device; called before any row is prepared. Raises StageError when the runtime asks for what is not there."""
    from stages.lm.train import training_run

    with _refusals(ctx, lambda rows: ""):
        return training_run.machine_of(ctx.runtime)


def train(
    settings: TrainingSettings, data: Prepared, machine: Machine, inputs: Mapping[str, Artifact], out: Path, ctx: Context,
    named: Callable[[list[int]], str] = lambda rows: "",
) -> Trained:  # fmt: skip
    """Trains on prepared rows.

    Args:
        settings: The stage's section of the recipe.
        data: The rows, and what to start from.
        machine: From `machine`.
        inputs: Those that decide the rows; their digests are in the fingerprint of snapshots.
        out: Where the checkpoint is put.
        ctx: The stage's context.
        named: What to say, beside the node, of rows that cannot be trained on.

    Raises:
        StageError: The ranks cannot do it, with what to do.
    """
    from stages.lm.data.order import Order
    from stages.lm.train.job import RankJob

    with _refusals(ctx, named):
        order = Order(data.phases, ctx.seed, settings.global_batch_size)
    job = RankJob(
        model=data.model, settings=settings, train=data.train, validation=data.validation, machine=machine, seed=ctx.seed,
        scratch=str(ctx.scratch), out=str(out), phases=data.phases, init_from=data.init_from,
        steps=settings.budget.in_steps(settings.global_batch_size, data.model.max_position_embeddings, order.steps_per_epoch),
        data_identity=" ".join(inputs[role].manifest["digest"] for role in sorted(inputs)),
    )  # fmt: skip
    return Trained(job, order, run_ranks(job, ctx, named), data.row_spans)


def run_ranks(job: RankJob, ctx: Context, named: Callable[[list[int]], str] = lambda rows: "") -> list[dict[str, Any]]:
    """Runs a job on its ranks; the lines of its metrics file. named: see `train`. Raises StageError with what to do."""
    from stages.lm.train import training_run

    with _refusals(ctx, named):
        return training_run.run(job, ctx)


@contextmanager
def _refusals(ctx: Context, named: Callable[[list[int]], str]) -> Iterator[None]:
    """Errors of lm as errors of this stage."""
    from stages.lm.train import training_run

    try:
        yield
    except training_run.FAILED as error:
        where = f"node {ctx.node}" + named(getattr(error, "rows", []))
        raise StageError(str(error), where=where, do=training_run.remedy(error, ctx.scratch)) from error


def publish(
    trained: Trained, out: Path, summary: Summary, record_counts: RecordCounts | None = None, identity: tuple[str, ...] = ()
) -> Outcome:
    """Writes model.json, metrics.jsonl, metrics.parquet, steps/ and row_spans/ beside the checkpoint.

    Args:
        trained: What `train` returned.
        out: The artifact's folder.
        summary: The stage's own figures. Metrics of the loss that it does not name are added (see `_with_metrics`).
        record_counts: Record counts, where the stage keeps or drops records.
        identity: Files of the stage's own that the digest counts.
    """
    from stages.lm.model.config import write_model_config
    from stages.lm.train import training_run

    job = trained.job
    write_model_config(job.model, out / "model.json")
    steps = (STEPS.types, training_run.step_rows(trained.order, job.steps))
    _write_tables(out, trained.lines, steps, trained.row_spans)
    spans = ("row_spans",) if trained.row_spans else ()
    return Outcome(
        rows=job.steps * job.training.global_batch_size,
        tokens=trained.tokens,
        record_counts=record_counts,
        summary=_with_metrics(summary, trained),
        identity=("checkpoint", "model.json", "steps", *spans, *identity),
    )


def _with_metrics(summary: Summary, trained: Trained) -> Summary:
    """Adds each metric of the loss that the stage does not report itself: on the validation rows, or of the last step without such rows."""
    from stages.lm.train import training_run

    last: dict[str, Any] = [line for line in trained.lines if "loss" in line][-1]
    added: Summary = {}
    for name in sorted(last.keys() - training_run.METRIC_COLUMNS.keys()):
        after = f"validation_{name}"
        if after in summary:
            continue
        if trained.job.validation is None:
            added[f"final_{name}"] = last[name]
        else:
            added |= {f"{after}_before": trained.first_evaluation(after), after: trained.last_evaluation(after)}
    return summary | added


def _write_tables(out: Path, lines: list[dict[str, Any]], steps: Table, spans: Mapping[str, Table]) -> None:
    from stages.core.tables.parquet import schema, write_rows
    from stages.lm.train import training_run

    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_rows(out / "metrics.parquet", schema(**training_run.metric_columns(lines)), training_run.metric_rows(lines))
    write_rows(out / "steps" / "00000.parquet", schema(**steps[0]), steps[1])
    for part, (columns, rows) in spans.items():
        write_rows(out / "row_spans" / f"{part}.parquet", schema(**columns), rows)


def _import_model(files: tuple[ExternalFile, ...], out: Path, ctx: Context) -> Outcome:
    """The checkpoint of a model that was trained elsewhere, with empty tables of steps and metrics."""
    from stages.lm.infer.import_model import take_model

    found = {file.name: file for file in files}
    weights = [Path(file.uri) for file in files if file.name.endswith(".safetensors")]
    if "config.json" not in found or not weights or len(found) < len(files):
        raise RecipeError(
            "A model is config.json and safetensors files of one folder.", where=files[0].uri, do="Name the folder of a Hugging Face model."
        )
    try:
        figures = take_model(Path(found["config.json"].uri), weights, out)
    except ValueError as error:
        raise RecipeError(str(error), where=str(Path(found["config.json"].uri).parent), do="Only such a model can be trained on.") from None
    _write_tables(out, [], (STEPS.types, ()), {})
    tokenizer = {"tokenizer_sha256": found["tokenizer.json"].sha256} if "tokenizer.json" in found else {}
    none = {"steps": 0, "tokens": 0, "epochs": 0.0, "flops": 0.0, "ranks": 0}
    return Outcome(rows=figures["parameters"], summary={**none, **figures, **tokenizer}, identity=("checkpoint", "model.json", "steps"))


IMPORT_MODEL = Importer(("config.json", "*.safetensors", "tokenizer.json"), _import_model)
"""How a checkpoint is made of a Hugging Face model folder. The tokenizer is only noted, to be compared with the pipeline's."""
