"""dpo: direct preference optimisation of the sft model on pairs, against the log-probabilities of the reference stage.

Guarantee: the loss is TRL's sigmoid loss (tested); a pair is one row of two pieces that never see each other; the sum runs
over the answer and its end-of-turn token. Reward accuracy and margin on the validation pairs stand in the summary before
and after. Cost: forward and backward over both answers; no reference model in memory.
Source: DPO (arXiv 2305.18290).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from stages.core.contract.declaration import Adoption, Artifact, Context, ExternalFile, Outcome, Stage
from stages.core.contract.errors import StageError
from stages.core.contract.training_settings import (
    METRICS,
    MODEL_FILES,
    ROW_SPANS,
    STEPS,
    TrainingConfig,
    adopt_checkpoint,
    training_section,
    write_training_tables,
)

if TYPE_CHECKING:
    import numpy as np

    from stages.lm.data.pairs import Encoded
    from stages.lm.model.config import ModelConfig


class DpoConfig(TrainingConfig):
    """Settings of the dpo stage; a batch row is a pair."""

    beta: float = Field(0.1, gt=0, le=100)
    """Strength of the pull towards the reference model. 0.1: DPO paper, section 6; also TRL's default."""


def run(config: DpoConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Trains on the pairs of the split "train"; writes a checkpoint with its metrics and side tables."""
    import numpy as np
    from tokenizers import Tokenizer

    from stages.lm.data import pairs
    from stages.lm.data.order import Order, Phase
    from stages.lm.model.config import read_model_config, write_model_config
    from stages.lm.train import training_run
    from stages.lm.train.job import Job
    from stages.text.items.chat import PAD

    shape = read_model_config(inputs["checkpoint"].path / "model.json")
    parts = _encode(inputs, shape, ctx)
    pad = pairs.token_id(Tokenizer.from_file(str(inputs["tokenizer"].path / "tokenizer.json")), PAD)
    files = {
        part: pairs.write_pair_rows(ctx.scratch / "data" / part, encoded, shape.max_positions, pad, references)
        for part, (encoded, references) in parts.items()
        if encoded.records or part == "train"
    }
    try:
        phases = (Phase(0, len(parts["train"][0].records)),)
        order = Order(phases, ctx.seed, config.global_batch_rows)
        job = Job(
            kind="train", model=shape, objective="preference", beta=config.beta, train=files["train"], validation=files.get("validation"),
            machine=training_run.machine_of(ctx.runtime), seed=ctx.seed, scratch=str(ctx.scratch), out=str(out), phases=phases,
            init_from=str(inputs["checkpoint"].path / "checkpoint"),
            steps=config.budget.in_steps(config.global_batch_rows, shape.max_positions, order.steps_per_pass),
            data_identity=" ".join(inputs[role].manifest["digest"] for role in sorted(inputs)), **training_run.job_settings(config),
        )  # fmt: skip
        lines = training_run.run(job, ctx)
    except training_run.FAILED as error:
        raise StageError(str(error), where=f"node {ctx.node}", do=training_run.remedy(error, ctx.scratch)) from error
    write_model_config(shape, out / "model.json")
    spans = {
        part: (pairs.ROW_SPAN_COLUMNS, pairs.row_span_rows(part, encoded, np.repeat(np.arange(len(encoded.records)), 2)))
        for part, (encoded, _) in parts.items()
    }
    steps = (training_run.STEP_COLUMNS, training_run.step_rows(order, job.steps))
    write_training_tables(out, lines, (training_run.METRIC_COLUMNS, training_run.metric_rows(lines)), steps, spans)
    return Outcome(
        rows=job.steps * job.global_batch_rows,
        tokens=training_run.metric_rows(lines)[-1]["tokens"],
        summary=_summary(job, lines, order, len(parts["train"][0].records)),
        identity=("checkpoint", "model.json", "steps", "row_spans"),  # the metrics hold clock values
    )


def _encode(inputs: Mapping[str, Artifact], shape: ModelConfig, ctx: Context) -> dict[str, tuple[Encoded, np.ndarray]]:
    """The pairs of both splits as tokens, each with its reference log-probabilities [pairs, 2]."""
    import numpy as np
    from tokenizers import Tokenizer

    from stages.core.tables import parquet
    from stages.lm.data import pairs
    from stages.text.items import chat

    tokenizer = Tokenizer.from_file(str(inputs["tokenizer"].path / "tokenizer.json"))
    known = {row["doc_id"]: row for row in parquet.read_rows(inputs["logprobs"].path / "logprobs.parquet")}
    records = list(parquet.read_rows(inputs["preferences"].path / "preferences.parquet"))

    def render(messages: Any) -> tuple[list[int], list[int]]:
        return chat.render(messages, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, last_only=True)

    parts = {}
    for part in ("train", "validation"):
        scored = [r for r in records if r["split"] == part and r["doc_id"] in known]
        encoded = pairs.encode_pairs(scored, render, shape.max_positions)
        references = np.zeros((len(encoded.records), 2))
        for number, record in enumerate(encoded.records):
            row = known[record["doc_id"]]
            counts = [int(mask.sum()) for _, mask in encoded.items[2 * number : 2 * number + 2]]
            if [row["chosen_tokens"], row["rejected_tokens"]] != counts:
                raise StageError(
                    f"The reference log-probabilities do not belong to these pairs: {record['doc_id']} has other tokens.",
                    where=f"node {ctx.node}",
                    do="Run the node reference again.",
                )
            references[number] = row["chosen_logp"], row["rejected_logp"]
        parts[part] = (encoded, references)
        left_out = sum(r["split"] == part for r in records) - len(encoded.records)
        ctx.log(
            f"{part}: {len(encoded.records)} pairs" + (f"; {left_out} that the reference did not score are left out" if left_out else "")
        )
    return parts


def _summary(job: Any, lines: list[dict[str, Any]], order: Any, train_pairs: int) -> dict[str, float | int | str | None]:
    from stages.lm.train import training_run

    found = training_run.evaluations(lines)
    summary: dict[str, float | int | str | None] = {
        "steps": job.steps,
        "passes": round(job.steps / order.steps_per_pass, 3),
        "pairs": train_pairs,
        "validation_pairs": int(found[-1]["validation_units"]) if found else 0,
        "final_loss": [line for line in lines if "loss" in line][-1]["loss"],
        "ranks": job.machine.ranks,
    }
    for name in ("loss", "reward_accuracy", "reward_margin", "logprob_accuracy"):
        summary[f"validation_{name}_before"] = found[0][f"validation_{name}"] if found else None
        summary[f"validation_{name}"] = found[-1][f"validation_{name}"] if found else None
    return summary


def adopt(files: tuple[ExternalFile, ...], out: Path, ctx: Context) -> Outcome:
    """The checkpoint of a model that was trained elsewhere."""
    from stages.lm.infer.import_model import take_model
    from stages.lm.train import training_run

    return adopt_checkpoint(files, out, take_model, training_run.METRIC_COLUMNS, training_run.STEP_COLUMNS)


STAGE = Stage(
    name="dpo",
    config=DpoConfig,
    run=run,
    inputs={"checkpoint": "sft", "logprobs": "reference", "preferences": "preferences", "tokenizer": "train_tokenizer"},
    model="dpo",
    output="checkpoint",
    tables=(METRICS, STEPS, ROW_SPANS),
    section=training_section,
    does="direct preference optimisation",
    versions=("sigmoid loss against stored reference log-probabilities",),
    distributions=("torch", "deepspeed", "safetensors", "tokenizers"),
    deterministic=False,
    uses_gpus=True,
    adopt=Adoption(MODEL_FILES, adopt),
)
