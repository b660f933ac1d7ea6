"""The summary of a trained model, recomputed from its tables and from the order of the oracle."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

from stages.record.contract.declaration import Artifact
from stages.record.tables.parquet import read_rows
from stages.training.measures.metrics import read_metrics
from tests.golden import oracle
from tests.stages.conftest import DPO, PRETRAIN, SFT, Chain

NAMES = ("pretrained", "tuned", "aligned")


def sequences_of(chain: Chain, name: str) -> int:
    """Returns the number of sequences that the model was trained on."""
    if name == "pretrained":
        return json.loads((chain.mixture.path / "mix.json").read_text())["train"]["sequences"]
    return 1 + max(span["sequence"] for span in read_rows(getattr(chain, name).path / "sequence_spans" / "train.parquet"))


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_table_is_the_oracle_s_order(chain: Chain, name: str) -> None:
    artifact: Artifact = getattr(chain, name)
    table = list(read_rows(artifact.path / "steps" / "00000.parquet"))
    steps = artifact.summary["steps"]
    expected = list(islice(oracle.batches(((0, sequences_of(chain, name)),), 8, 7), steps))
    assert [line["sequence"] for line in table] == sum(expected, [])
    assert [line["step"] for line in table] == [1 + at for at in range(steps) for _ in range(8)]
    assert artifact.manifest["rows"] == 8 * steps


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_the_metrics(chain: Chain, name: str) -> None:
    artifact: Artifact = getattr(chain, name)
    lines, summary = read_metrics(artifact.path / "metrics.jsonl"), artifact.summary
    trained = [line for line in lines if "loss" in line]
    evaluated = [line for line in lines if "validation_loss" in line]
    sequences = sequences_of(chain, name)
    steps = {
        "pretrained": PRETRAIN["budget"]["steps"],
        "tuned": SFT["budget"]["epochs"] * (sequences // 8),
        "aligned": DPO["budget"]["steps"],
    }[name]
    assert summary["steps"] == steps == len(trained) and summary["ranks"] == 1
    assert summary["epochs"] == round(steps / (sequences // 8), 3)
    assert summary.get("sequences_left_over_per_epoch", sequences % 8) == sequences % 8
    assert artifact.manifest["tokens"] == summary.get("tokens", artifact.manifest["tokens"]) == sum(line["tokens"] for line in trained)
    assert summary["final_loss"] == trained[-1]["loss"] and summary["validation_loss"] == evaluated[-1]["validation_loss"]
    assert summary.get("validation_loss_before", evaluated[0]["validation_loss"]) == evaluated[0]["validation_loss"]
    assert [line["step"] for line in evaluated] == sorted({*range(0, steps + 1, 5), steps})
    table = list(read_rows(artifact.path / "metrics.parquet"))
    later = {line["step"]: line["validation_loss"] for line in evaluated}
    assert [(row["step"], row["loss"], row["lr"], row["grad_norm"], row["validation_loss"]) for row in table] == [
        (line["step"], line["loss"], line["lr"], line["grad_norm"], later.get(line["step"])) for line in trained
    ]
    assert [row["tokens"] for row in table] == np.cumsum([line["tokens"] for line in trained]).tolist()
    config = {"pretrained": PRETRAIN, "tuned": SFT, "aligned": DPO}[name]
    rates = [oracle.rate(at, config["learning_rate"], 0.1, config["warmup_steps"], steps) for at in range(steps)]
    assert [line["lr"] for line in trained] == pytest.approx(rates, rel=1e-12)


def test_figures_of_preferences(chain: Chain) -> None:
    summary = chain.aligned.summary
    evaluated = [line for line in read_metrics(chain.aligned.path / "metrics.jsonl") if "validation_loss" in line]
    for name in ("loss", "reward_accuracy", "reward_margin", "logprob_accuracy"):
        assert summary[f"validation_{name}_before"] == evaluated[0][f"validation_{name}"]
        assert summary[f"validation_{name}"] == evaluated[-1][f"validation_{name}"]
    scored = list(read_rows(chain.logprobs.path / "logprobs.parquet"))
    split = {r["doc_id"]: r["split"] for r in read_rows(chain.preferences.path / "preferences.parquet")}
    higher = [row["chosen_logp"] > row["rejected_logp"] for row in scored]
    assert chain.logprobs.summary == {"pairs": 59, "logprob_accuracy": pytest.approx(np.mean(higher)), "left_out": 1}
    assert chain.logprobs.manifest["tokens"] == sum(row["chosen_tokens"] + row["rejected_tokens"] for row in scored)
    held = [h for h, row in zip(higher, scored, strict=True) if split[row["doc_id"]] == "validation"]
    assert summary["validation_logprob_accuracy_before"] == pytest.approx(np.mean(held))  # the policy is still equal to the reference model


@pytest.mark.parametrize("name", ["tuned", "aligned"])
def test_no_validation_record_is_in_a_trained_sequence(chain: Chain, name: str) -> None:
    artifact: Artifact = getattr(chain, name)
    source = chain.conversations if name == "tuned" else chain.preferences
    split = {r["doc_id"]: r["split"] for r in read_rows(next(source.path.glob("*.parquet")))}
    for part in ("train", "validation"):
        spans = list(read_rows(artifact.path / "sequence_spans" / f"{part}.parquet"))
        assert {split[span["doc_id"]] for span in spans} == {part} == {span["part"] for span in spans}
