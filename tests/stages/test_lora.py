"""sft and dpo with LoRA: what is trained, what the merged model is, and that peft reads the adapter over an export of the base."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stages.evaluation import export
from stages.questions.receipts import receipt_faults
from stages.record.contract.declaration import Artifact
from stages.record.contract.errors import RecipeError, StageError
from stages.record.contract.recipe import validated
from stages.record.run.runner import Event
from stages.training import dpo, reference, sft
from stages.training.checkpoints import checkpoint
from stages.training.checkpoints.lora_adapter import ADAPTER
from stages.training.checkpoints.snapshot_folders import ADAPTERS
from stages.training.model.config import LORA_TARGETS, Lora, ModelConfig, read_model_config
from stages.training.model.flops import flops_per_token, lora_parameters, matmul_parameters
from stages.training.model.llama import Llama, add_adapters
from tests.conftest import run_stage
from tests.stages.conftest import DPO, RUNTIME, SFT, Chain
from tests.stages.test_pretrain import ranks_below

pytestmark = pytest.mark.long

LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj", "down_proj"]}
SETTINGS: dict[str, Any] = {
    **SFT,
    "learning_rate": 1e-2,
    "eval_every_steps": 1,
    "checkpoint_every_steps": 2,
    "budget": {"steps": 6},
    "lora": LORA,
}


def tuned(
    chain: Chain, home: Path, runtime: Mapping[str, Any] | None = None, events: list[Event] | None = None, **settings: Any
) -> Artifact:
    inputs = {"checkpoint": chain.pretrained, "conversations": chain.conversations, "tokenizer": chain.tokenizer}
    return run_stage(sft.STAGE, SETTINGS | settings, inputs, home, runtime={**RUNTIME, **(runtime or {})}, events=events)


@pytest.fixture(scope="module")
def adapted(chain: Chain) -> Artifact:
    return tuned(chain, chain.home)


def weights(artifact: Artifact, folder: str = "checkpoint") -> dict[str, Tensor]:
    return checkpoint.consolidate(artifact.path / folder)


def test_only_the_adapters_are_trained(chain: Chain, adapted: Artifact) -> None:
    before, adapters, after = weights(chain.pretrained), weights(adapted, ADAPTERS), weights(adapted)
    matrices = {f"blocks.{block}.{LORA_TARGETS[name]}" for block in (0, 1) for name in ("q_proj", "v_proj", "down_proj")}
    assert set(adapters) == {f"{matrix}.adapter.{half}" for matrix in matrices for half in ("down", "up")}
    shape = read_model_config(adapted.path / "model.json")
    assert sum(one.numel() for one in adapters.values()) == lora_parameters(shape, Lora(**LORA)) and before.keys() == after.keys()
    assert checkpoint.verify(adapted.path / ADAPTERS).step == 6
    for name, weight in before.items():
        matrix = name.removesuffix(".weight")
        if matrix in matrices:
            added = 8.0 / 4 * (adapters[f"{matrix}.adapter.up"] @ adapters[f"{matrix}.adapter.down"])
            assert torch.allclose(after[name], weight + added, atol=1e-7) and added.abs().max() > 1e-4
        else:
            assert torch.equal(after[name], weight), name


def test_the_merged_model_is_the_one_that_was_evaluated(chain: Chain, adapted: Artifact) -> None:
    """It begins as the base. Where another training starts from it, its first evaluation is the last one of this training."""
    summary = adapted.summary
    assert summary["validation_loss_before"] == pytest.approx(chain.tuned.summary["validation_loss_before"], rel=1e-6)
    assert summary["validation_loss"] < summary["validation_loss_before"] - 0.1
    inputs = {"checkpoint": adapted, "conversations": chain.conversations, "tokenizer": chain.tokenizer}
    again = run_stage(sft.STAGE, {**SETTINGS, "lora": None, "budget": {"steps": 1}, "warmup_steps": 0}, inputs, chain.home, runtime=RUNTIME)
    assert again.summary["validation_loss_before"] == pytest.approx(summary["validation_loss"], rel=1e-5)
    assert receipt_faults(adapted, intact=True) == []


@pytest.mark.parametrize(
    ("runtime", "settings", "tolerance"),
    [({"zero_stage": 1, "cpu_ranks": 2}, {}, 1e-3), ({"cpu_ranks": 2, "recompute": "block"}, {}, 1e-3),
     ({}, {"precision": "bf16"}, 0.5), ({"zero_stage": 1}, {"precision": "bf16"}, 0.5)],
    ids=str,
)  # fmt: skip
def test_stage_ranks_and_precision_change_no_more_than_rounding(
    chain: Chain, adapted: Artifact, tmp_path: Path, runtime: dict[str, Any], settings: dict[str, Any], tolerance: float
) -> None:
    """A weight that is not trained is the same in fp32. tolerance: as a share of the largest change of a matrix."""
    found, expected = weights(tuned(chain, tmp_path, runtime, **settings)), weights(adapted)
    before = weights(chain.pretrained)
    for name, weight in expected.items():
        assert (found[name] - weight).abs().max() <= tolerance * (weight - before[name]).abs().max(), name


def test_a_killed_training_goes_on_to_the_same_bits(chain: Chain, adapted: Artifact, tmp_path: Path) -> None:
    killed: list[bool] = []

    class Killer(list[Event]):
        def append(self, event: Event) -> None:
            super().append(event)
            if not killed and event.values.get("line", "").startswith("step 3: validation loss"):
                killed.append(True)
                for rank in ranks_below(os.getpid()):
                    os.kill(rank, signal.SIGKILL)

    with pytest.raises(StageError, match="ended by signal SIGKILL"):
        tuned(chain, tmp_path, events=Killer())
    events: list[Event] = []
    found = tuned(chain, tmp_path, events=events)
    assert any("continues from step 2" in event.values.get("line", "") for event in events)
    for folder in (ADAPTERS, "checkpoint"):
        given, other = weights(found, folder), weights(adapted, folder)
        assert given.keys() == other.keys() and all(torch.equal(given[name], other[name]) for name in given)


def exported(chain: Chain, checkpoint_: Artifact, node: str) -> Path:
    return run_stage(export.STAGE, {}, {"checkpoint": checkpoint_, "tokenizer": chain.tokenizer}, chain.home, node=node).path


def test_peft_reads_the_adapter_over_an_export_of_the_base(chain: Chain, adapted: Artifact) -> None:
    """Also of dpo, whose base is the tuned model, with all targets."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    scored = {"checkpoint": adapted, "preferences": chain.preferences, "tokenizer": chain.tokenizer}
    logprobs = run_stage(reference.STAGE, {}, scored, chain.home, runtime=RUNTIME)
    lora = {"rank": 2, "alpha": 3.0}
    aligned = run_stage(
        dpo.STAGE, {**DPO, "learning_rate": 1e-2, "lora": lora}, scored | {"logprobs": logprobs}, chain.home, runtime=RUNTIME
    )
    ids = torch.randint(300, (2, 96), generator=torch.Generator().manual_seed(1))
    for base, trained in ((chain.pretrained, adapted), (adapted, aligned)):
        under, over = (AutoModelForCausalLM.from_pretrained(exported(chain, one, "export@sft")).eval() for one in (base, trained))
        with torch.no_grad():
            plain, merged = under(ids).logits, over(ids).logits
            theirs = PeftModel.from_pretrained(under, trained.path / ADAPTER).eval()(ids).logits
        assert (plain - merged).abs().max() > 1e-2, "the adapter does something"
        assert torch.allclose(theirs, merged, atol=1e-5)


def test_what_is_refused() -> None:
    with pytest.raises(RecipeError, match="lora keeps no milestones"):
        validated(sft.SftConfig, {**SETTINGS, "milestone_every_steps": 2}, "sft", "test")
    with pytest.raises(RecipeError, match="targets"):
        validated(dpo.DpoConfig, {**DPO, "lora": {**LORA, "targets": ["query"]}}, "dpo", "test")


@pytest.mark.parametrize("change", [{}, {"conv_layers": [0], "qk_norm": True, "head_dim": 6}], ids=str)
def test_counts_are_those_of_the_built_model(change: dict[str, Any]) -> None:
    shape = {"vocab_size": 9, "num_hidden_layers": 3, "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = ModelConfig(**shape, intermediate_size=20, max_position_embeddings=8, **change)
    for targets in (list(LORA_TARGETS), *([name] for name in LORA_TARGETS)):
        model, lora = Llama(config), Lora(rank=3, alpha=1.0, targets=targets)
        add_adapters(model, lora)
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        assert trained == lora_parameters(config, lora)
        assert flops_per_token(config, 5, lora) - flops_per_token(config, 5) == 6 * trained - 2 * matmul_parameters(config)
