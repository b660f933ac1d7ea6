"""The settings that every training stage has: budget, batch, optimizer, schedule, precision.

Guarantee: a budget has exactly one unit. Defaults stand here once; what differs per stage has none here and is asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stages.core.contract.declaration import Artifact, ExternalFile, Outcome, StageConfig
from stages.core.contract.errors import RecipeError
from stages.core.contract.report_section import LineChart, Section, SectionTable, figure
from stages.core.contract.side_table import Column, SideTable

Beta = Annotated[float, Field(ge=0, lt=1)]


class Budget(StageConfig):
    """How long to train: exactly one of the three (OLMo-core's Duration)."""

    steps: int | None = Field(None, ge=1, le=10**9)
    """Optimizer steps."""
    tokens: int | None = Field(None, ge=1, le=10**16)
    """Tokens of full rows; rounded up to whole steps."""
    epochs: float | None = Field(None, gt=0, le=1_000_000)
    """Passes over the rows; rounded down to whole steps, at least one."""

    @model_validator(mode="after")
    def _one_unit(self) -> Budget:
        given = [name for name in ("steps", "tokens", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"budget needs exactly one of steps, tokens and epochs; {' and '.join(given) or 'none'} is set")
        return self

    def in_steps(self, global_batch_rows: int, seq_len: int, steps_per_pass: int) -> int:
        """The budget in optimizer steps."""
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return math.ceil(self.tokens / (global_batch_rows * seq_len))
        assert self.epochs is not None
        return max(1, int(self.epochs * steps_per_pass))


class TrainingConfig(StageConfig):
    """Base of the pretrain, sft and dpo sections."""

    budget: Budget
    """How long to train."""
    global_batch_rows: int = Field(ge=1, le=10**8)
    """Rows per optimizer step over all ranks; must be a multiple of ranks × runtime.micro_batch_rows."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate of AdamW."""
    min_lr_frac: float = Field(0.1, ge=0, le=1)
    """Final learning rate as a fraction of the peak. 0.1: Chinchilla (arXiv 2203.15556) and Llama 2."""
    warmup_steps: int = Field(ge=0)
    """Steps of linear warm-up."""
    weight_decay: float = Field(0.1, ge=0, le=100)
    """AdamW's decoupled weight decay of matrices. 0.1: GPT-3 (arXiv 2005.14165) and Llama."""
    decay_embeddings: bool = False
    """Whether weight decay touches the token embedding too."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's decay rates of the two moments. GPT-3 and Llama."""
    clip: float = Field(1.0, ge=0, le=1e9)
    """Largest global gradient norm; 0 for no clipping. 1.0: GPT-3 and Llama."""
    eval_every_steps: int = Field(ge=0)
    """Steps between evaluations on the validation rows; 0 for the first and the last only."""
    max_validation_rows: int = Field(512, ge=1)
    """Validation rows that an evaluation reads, evenly spaced over all of them. 512: a guess, for a standard error of about a percent."""
    checkpoint_every_steps: int = Field(ge=0)
    """Steps between resume points; 0 for the last only."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of forward and backward pass; master weights and moments are fp32 in either case."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> TrainingConfig:
        if self.budget.steps is not None and self.warmup_steps >= self.budget.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below budget.steps {self.budget.steps}")
        return self


ROW_SPANS = SideTable(
    "row_spans", "row_spans", "a piece of a document in a training row",
    {
        "part": Column("string", "train or validation"),
        "row": Column("int64", "number of the row"),
        "piece": Column("int32", "number of the piece in the row"),
        "doc_id": Column("uuid", "the document, conversation or pair"),
        "source": Column("string", "its source"),
        "shard": Column("int32", "number of the token file; 0 where the stage made the tokens"),
        "start": Column("int64", "position of the piece's first token in the file"),
        "length": Column("int64", "its tokens"),
    },
)  # fmt: skip
STEPS = SideTable(
    "steps", "steps", "a row that was trained on",
    {
        "step": Column("int64", "the optimizer step, from 1"),
        "position": Column("int64", "place in the order of rows"),
        "row": Column("int64", "the row: row of row_spans"),
        "phase": Column("int32", "phase of the mixture"),
        "pass": Column("int32", "how often the phase had been read before"),
    },
)  # fmt: skip
METRICS = SideTable(
    "metrics", "step_metrics", "an optimizer step",
    {
        "step": Column("int64", "finished steps"),
        "tokens": Column("int64", "tokens trained on so far"),
        "loss": Column("float64", "mean loss of the step"),
        "lr": Column("float64", "learning rate"),
        "grad_norm": Column("float64", "global norm of the gradient before it is clipped"),
        "tokens_per_s": Column("float64", "tokens per second"),
        "validation_loss": Column("float64", "loss on the validation rows; null between evaluations"),
    },
)  # fmt: skip


def training_section(artifact: Artifact) -> Section:
    """The loss by step as a chart, and every figure of the summary."""
    from stages.core.tables.parquet import read_rows

    node = str(artifact.manifest["node"])
    rows = list(read_rows(artifact.path / "metrics.parquet", ["step", "loss", "validation_loss"]))
    lines = {
        name: [(float(row["step"]), row[column]) for row in rows if row[column] is not None]
        for name, column in (("train", "loss"), ("validation", "validation_loss"))
    }
    figures = tuple({"node": node, "figure": name.replace("_", " "), "value": figure(value)} for name, value in artifact.summary.items())
    return Section(
        "Training",
        tables=(SectionTable(figures, "Figures", ("value",), folded=True),),
        charts=(LineChart(f"{node}: loss by step", "step", "loss", lines),),
    )


Table = tuple[Mapping[str, str], Iterable[Mapping[str, Any]]]


def write_training_tables(out: Path, lines: Iterable[Mapping[str, Any]], metrics: Table, steps: Table, spans: Mapping[str, Table]) -> None:
    """metrics.jsonl (the lines as they came), metrics.parquet, steps/00000.parquet, row_spans/<part>.parquet: (columns, rows) each."""
    from stages.core.tables.parquet import schema, write_rows

    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_rows(out / "metrics.parquet", schema(**metrics[0]), metrics[1])
    write_rows(out / "steps" / "00000.parquet", schema(**steps[0]), steps[1])
    for part, (columns, rows) in spans.items():
        write_rows(out / "row_spans" / f"{part}.parquet", schema(**columns), rows)


MODEL_FILES = ("config.json", "*.safetensors", "tokenizer.json")
"""What a checkpoint is adopted from: a Hugging Face model folder. The tokenizer is only noted, to be compared with the road's."""


def adopt_checkpoint(
    files: Sequence[ExternalFile], out: Path, take: Callable[[Path, Sequence[Path], Path], Mapping[str, int]], metrics: Mapping[str, str],
    steps: Mapping[str, str],
) -> Outcome:  # fmt: skip
    """A model of a user's own as what a training stage publishes: its training steps are none, and so are its metrics.

    take: (config.json, safetensors files, out) -> figures of the model; raises ValueError where it cannot. metrics, steps: columns.
    """
    found = {file.name: file for file in files}
    weights = [Path(file.uri) for file in files if file.name.endswith(".safetensors")]
    if "config.json" not in found or not weights or len(found) < len(files):
        raise RecipeError(
            "A model is config.json and safetensors files of one folder.", where=files[0].uri, do="Name the folder of a Hugging Face model."
        )
    try:
        figures = take(Path(found["config.json"].uri), weights, out)
    except ValueError as error:
        raise RecipeError(str(error), where=str(Path(found["config.json"].uri).parent), do="Only such a model can be trained on.") from None
    write_training_tables(out, (), (metrics, ()), (steps, ()), {})
    tokenizer = {"tokenizer_sha256": found["tokenizer.json"].sha256} if "tokenizer.json" in found else {}
    none = {"steps": 0, "tokens": 0, "passes": 0.0, "flops": 0.0, "ranks": 0}
    return Outcome(rows=figures["parameters"], summary={**none, **figures, **tokenizer}, identity=("checkpoint", "model.json", "steps"))
