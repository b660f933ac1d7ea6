"""Imported models: weights are bit-exact for any number of shards, and unsupported features are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.lm.infer import import_model
from stages.lm.infer.convert import hugging_face_config, hugging_face_name
from stages.lm.infer.import_model import ImportedModelError, import_checkpoint, read_shape
from stages.lm.model.config import ModelConfig, read_model_config
from stages.lm.train import checkpoint

SPECIAL = {"bos": 1, "eos": 2, "pad": 3}
SHAPE = ModelConfig(
    vocab_size=50,
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=24,
    max_position_embeddings=32,
    rope_theta=500.0,
)


def model(folder: Path, shape: ModelConfig = SHAPE, shard: str = "200KB", dtype: torch.dtype = torch.float32) -> Path:
    """Returns a model folder as transformers writes it, with random weights."""
    from transformers import LlamaForCausalLM, Qwen3ForCausalLM

    torch.manual_seed(3)
    made = (Qwen3ForCausalLM if shape.qk_norm else LlamaForCausalLM)(hugging_face_config(shape, SPECIAL, "float32"))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    made.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


def take(folder: Path, out: Path) -> dict[str, int]:
    return import_checkpoint(folder / "config.json", sorted(folder.glob("*.safetensors")), out)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"tie_word_embeddings": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_weight_is_the_same(tmp_path: Path, changes: dict[str, Any], dtype: torch.dtype) -> None:
    shape = ModelConfig(**{**SHAPE.to_json(), **changes})
    theirs = model(tmp_path / "model", shape, "8KB", dtype)
    assert len(list(theirs.glob("*.safetensors"))) > 1
    figures = take(theirs, tmp_path)
    assert read_model_config(tmp_path / "model.json") == shape
    ours, given = checkpoint.consolidate(tmp_path / "checkpoint"), weights(theirs)
    assert figures["parameters"] == sum(t.numel() for t in ours.values()) and figures["vocab_size"] == 50
    assert {hugging_face_name(name) for name in ours} == set(given)
    assert all(torch.equal(tensor, given[hugging_face_name(name)].float()) for name, tensor in ours.items())
    trainer = checkpoint.verify(tmp_path / "checkpoint")
    assert (trainer.step, trainer.optimizer_steps, trainer.ranks) == (0, 0, 1)


def test_shards_are_as_large_as_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_model, "SHARD_BYTES", 3_000)
    theirs = model(tmp_path / "model")
    take(theirs, tmp_path)
    shards = sorted((tmp_path / "checkpoint" / "shards").iterdir())
    parameters = sum(t.numel() for t in weights(theirs).values())
    assert len(shards) == -(-4 * parameters // 3_000) > 5
    ours, given = checkpoint.consolidate(tmp_path / "checkpoint"), weights(theirs)
    assert all(torch.equal(tensor, given[hugging_face_name(name)]) for name, tensor in ours.items())


CONFIGS: list[tuple[dict[str, Any], str]] = [
    (
        {"architectures": ["MistralForCausalLM"]},
        "The architecture is MistralForCausalLM; Loam's decoder is LlamaForCausalLM or Qwen3ForCausalLM.",
    ),
    ({"architectures": None}, "The architecture is llama"),
    ({"hidden_size": None}, "config.json has no hidden_size"),
    ({"attention_bias": True}, "Its attention_bias is true; Loam's decoder has false."),
    ({"hidden_act": "gelu"}, 'Its hidden_act is "gelu"; Loam\'s decoder has "silu".'),
    ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "Its rope_type is llama3"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "Its rope_scaling is"),
    ({"quantization_config": {"quant_method": "gptq"}}, "Its quantization_config is"),
    ({"head_dim": 8}, "Its head_dim is 8; Loam's heads share the width, 16 / 4."),
    ({"num_attention_heads": 3, "head_dim": None}, "model.hidden_size 16 is not divisible by model.num_attention_heads 3"),
]


@pytest.mark.parametrize(("changes", "what"), CONFIGS, ids=lambda v: v if isinstance(v, str) else "")
def test_what_our_decoder_does_not_compute_is_named(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    given = hugging_face_config(SHAPE, SPECIAL, "float32").to_dict() | {"architectures": ["LlamaForCausalLM"]} | changes
    (tmp_path / "config.json").write_text(json.dumps({name: value for name, value in given.items() if value is not None}))
    with pytest.raises(ImportedModelError) as caught:
        read_shape(tmp_path / "config.json")
    assert str(caught.value).startswith(what)


def test_a_config_of_transformers_4_is_read(tmp_path: Path) -> None:
    given = hugging_face_config(SHAPE, SPECIAL, "float32").to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 500.0,
        "rope_scaling": None,
    }
    del given["rope_parameters"], given["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert read_shape(tmp_path / "config.json") == SHAPE
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ImportedModelError, match="config.json is not JSON"):
        read_shape(tmp_path / "config.json")


def changed(folder: Path, change: Any) -> Path:
    (path,) = model(folder).glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return folder


HEAD, EMBEDDING, QUERY = "lm_head.weight", "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.pop(QUERY), f"The tensor {QUERY} is missing in the safetensors files."),
        (lambda t: [t.pop(name) for name in list(t) if "layers.1" in name], "9 tensors (model.layers.1"),
        (
            lambda t: t.update({"model.layers.1.self_attn.q_proj.bias": torch.zeros(16)}),
            "The tensor model.layers.1.self_attn.q_proj.bias is not part",
        ),
        (lambda t: t.update({QUERY: torch.zeros(16, 8)}), f"{QUERY} has the shape [16, 8], but config.json makes it [16, 16]."),
        (lambda t: t.update({QUERY: torch.zeros(16, 16, dtype=torch.int8)}), f"{QUERY} is I8; the weights must be one of F32, BF16, F16."),
        (lambda t: t[QUERY].fill_(float("nan")), f"{QUERY} holds values that are not finite."),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: Any, what: str) -> None:
    with pytest.raises(ImportedModelError) as caught:
        take(changed(tmp_path / "model", change), tmp_path)
    assert str(caught.value).startswith(what)


def test_a_tied_head_must_be_the_embedding(tmp_path: Path) -> None:
    theirs = changed(tmp_path / "model", lambda tensors: None)
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(
        ImportedModelError, match="config.json ties the embeddings, but lm_head.weight differs from model.embed_tokens.weight"
    ):
        take(theirs, tmp_path / "a")
    (path,) = theirs.glob("*.safetensors")
    tensors = load_file(path)
    save_file({**tensors, HEAD: tensors[EMBEDDING].clone()}, path)
    take(theirs, tmp_path / "b")
    assert "head.weight" not in checkpoint.consolidate(tmp_path / "b" / "checkpoint")


def test_files_that_are_not_one_model_are_named(tmp_path: Path) -> None:
    theirs = model(tmp_path / "model")
    (path,) = theirs.glob("*.safetensors")
    (theirs / "again.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(ImportedModelError, match="is in two files, model.safetensors among them"):
        take(theirs, tmp_path / "a")
    (theirs / "again.safetensors").write_bytes(b"not")
    with pytest.raises(ImportedModelError, match="again.safetensors is not a safetensors file"):
        take(theirs, tmp_path / "b")
