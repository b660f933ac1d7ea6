"""The shape of a model and the counts that follow from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stages.lm.model import flops
from stages.lm.model.config import ModelConfig, read_model_config, write_model_config

SMALL = {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 3}, "model.hidden_size 16 is not divisible by model.num_attention_heads 3"),
        ({"num_key_value_heads": 3}, "model.num_attention_heads 4 is not divisible by model.num_key_value_heads 3"),
        ({"hidden_size": 12}, "A head has 3 channels, which RoPE cannot rotate in pairs"),
        ({"num_hidden_layers": 0}, "num_hidden_layers\n  Input should be greater than or equal to 1"),
    ],
)
def test_impossible_shapes_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{**SMALL, **change})


def test_model_json_round_trip(tmp_path: Path) -> None:
    config = ModelConfig(**SMALL, qk_norm=True)
    write_model_config(config, tmp_path / "model.json")
    assert read_model_config(tmp_path / "model.json") == config


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_counts_equal_the_built_model(tied: bool, qk_norm: bool) -> None:
    from stages.lm.model.llama import Llama

    config = ModelConfig(**SMALL, tie_word_embeddings=tied, qk_norm=qk_norm)
    model = Llama(config)
    assert flops.parameter_count(config) == sum(p.numel() for p in model.parameters())
    matmuls = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and not (n.startswith("embedding.") and not tied))
    assert flops.matmul_parameters(config) == matmuls
    assert flops.flops_per_token(config, 32) == 6 * matmuls + 12 * 2 * 16 * 32
    assert flops.checkpoint_bytes(config, flops.StateTensors(2, 2)) == 12 * flops.parameter_count(config)
    hidden = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks."))
    others = flops.parameter_count(config) - hidden
    assert flops.checkpoint_bytes(config, flops.StateTensors(1, 2)) == 8 * hidden + 12 * others
    memory = [flops.training_memory_bytes(config, 1, 1, 32, "fp32", False, flops.StateTensors(*given)) for given in ((1, 2), (2, 2), (2, 3))]
    assert memory[1] - memory[0] == 4 * hidden and memory[2] - memory[1] == 4 * others


def test_llama_3_8b_has_its_known_size() -> None:
    llama = ModelConfig(
        vocab_size=128_256,
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14_336,
        max_position_embeddings=8192,
    )
    assert flops.parameter_count(llama) == 8_030_261_248
    one = flops.training_memory_bytes(llama, 1, 1, 8192, "bf16", True, flops.StateTensors(2, 2))
    assert flops.training_memory_bytes(llama, 64, 1, 8192, "bf16", True, flops.StateTensors(2, 2)) < one


def test_plan_needs_no_torch() -> None:
    code = (
        "import sys; from stages.lm.data import order; from stages.lm.model import config, flops;"
        "from stages.lm.train import job, launch, training_run, training_settings; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"
