"""A Hugging Face model folder as a checkpoint of ours: LlamaForCausalLM, or Qwen3ForCausalLM with its norm on queries and keys.

Guarantee: the way back of lm/convert: every weight is renamed and widened to fp32, none is changed; what our decoder does not compute
(biases, scaled rotary frequencies, sliding windows, quantised weights), a missing or unknown tensor and a wrong shape are refused by
name. Cost: one pass over the weights, rows at a time; 12 bytes per parameter on the disk, SHARD_BYTES of memory.
Source: config.json of transformers 4 and 5; the architectures are those that export writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stages.lm import checkpoint, flops
from stages.lm.arch import ModelConfig, ShapeError, write_model_config
from stages.lm.convert import hugging_face_name
from stages.lm.model import Llama

SHARD_BYTES = 2 << 30
ARCHITECTURES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}  # whether queries and keys are normed
MUST_BE: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,), "use_sliding_window": (False,), "quantization_config": (None,),
    "partial_rotary_factor": (1.0,), "rope_scaling": (None,),
}  # fmt: skip
"""Settings that our decoder has no other value for; each may be absent."""
NEEDED = ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
DTYPES = ("F32", "BF16", "F16")


class ForeignModelError(ValueError):
    """A model folder that our decoder cannot be, each a full sentence for the user."""


def take_model(config: Path, weights: Sequence[Path], out: Path) -> dict[str, int]:
    """Writes checkpoint/ and model.json into `out`; returns {"parameters", "vocab_size"}.

    config: config.json. weights: its safetensors files.
    """
    shape = read_shape(config)
    with torch.device("meta"):
        names = {name: list(parameter.shape) for name, parameter in Llama(shape).named_parameters()}
    with ExitStack() as stack:
        held = _open(weights, stack)
        _refuse_other_tensors(held, names, shape)

        def value(name: str, begin: int, end: int) -> Tensor:
            return _flat(held[hugging_face_name(name)].get_slice(hugging_face_name(name)), names[name], begin, end, name)

        checkpoint.write_fresh(out / "checkpoint", names, value, SHARD_BYTES)
    write_model_config(shape, out / "model.json")
    return {"parameters": flops.parameter_count(shape), "vocab_size": shape.vocab_size}


def read_shape(path: Path) -> ModelConfig:
    """The shape of a transformers config.json; raises ForeignModelError naming the setting that our decoder does not have."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ForeignModelError(f"config.json is not JSON: {error}.") from None
    architecture = (config.get("architectures") or [config.get("model_type")])[0]
    if architecture not in ARCHITECTURES:
        raise ForeignModelError(f"The architecture is {architecture}; Loam's decoder is {' or '.join(ARCHITECTURES)}.")
    missing = [name for name in NEEDED if name not in config]
    if missing:
        raise ForeignModelError(f"config.json has no {missing[0]}.")
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ForeignModelError(f"Its rope_type is {rope['rope_type']}; Loam's decoder has unscaled rotary frequencies.")
    for name, allowed in MUST_BE.items():
        if name in config and config[name] not in allowed:
            raise ForeignModelError(f"Its {name} is {json.dumps(config[name])}; Loam's decoder has {json.dumps(allowed[0])}.")
    heads = config["num_attention_heads"]
    if config.get("head_dim") not in (None, config["hidden_size"] / heads):
        raise ForeignModelError(f"Its head_dim is {config['head_dim']}; Loam's heads share the width, {config['hidden_size']} / {heads}.")
    try:
        return ModelConfig(
            vocab_size=config["vocab_size"], depth=config["num_hidden_layers"], width=config["hidden_size"], heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads, ffn_width=config["intermediate_size"],
            max_positions=config["max_position_embeddings"], rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            norm_eps=config.get("rms_norm_eps", 1e-6), tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qk_norm=ARCHITECTURES[architecture],
        )  # fmt: skip
    except ShapeError as error:
        raise ForeignModelError(str(error)) from None


def _open(weights: Sequence[Path], stack: ExitStack) -> dict[str, Any]:
    """Tensor name -> the opened file that holds it."""
    held: dict[str, Any] = {}
    for path in weights:
        try:
            file = stack.enter_context(safe_open(path, "pt"))
        except SafetensorError as error:
            raise ForeignModelError(f"{path.name} is no safetensors file: {error}.") from None
        for name in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
            if name in held:
                raise ForeignModelError(f"The tensor {name} is in two files, {path.name} among them.")
            held[name] = file
    return held


def _refuse_other_tensors(held: Mapping[str, Any], names: Mapping[str, list[int]], shape: ModelConfig) -> None:
    wanted = {hugging_face_name(name): size for name, size in names.items()}
    missing = [name for name in wanted if name not in held]
    if missing:
        raise ForeignModelError(f"{_some(missing)} missing in the safetensors files.")
    head = hugging_face_name("head.weight")
    derived = {head} if shape.tied_embeddings else set()
    unknown = sorted(name for name in held if name not in wanted and name not in derived and not name.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise ForeignModelError(f"{_some(unknown)} not part of Loam's decoder.")
    for name, size in wanted.items():
        found = held[name].get_slice(name)
        if found.get_shape() != size:
            raise ForeignModelError(f"{name} has the shape {found.get_shape()}, but config.json makes it {size}.")
        if found.get_dtype() not in DTYPES:
            raise ForeignModelError(f"{name} is {found.get_dtype()}; the weights must be one of {', '.join(DTYPES)}.")
    embedding = hugging_face_name("embedding.weight")
    if shape.tied_embeddings and head in held and not torch.equal(held[head].get_tensor(head), held[embedding].get_tensor(embedding)):
        raise ForeignModelError(f"config.json ties the embeddings, but {head} differs from {embedding}.")


def _flat(piece: Any, shape: Sequence[int], begin: int, end: int, name: str) -> Tensor:
    """Elements begin to end of a tensor laid flat, fp32; only the rows that hold them are read."""
    per_row = torch.Size(shape[1:]).numel()
    first, last = begin // per_row, -(-end // per_row)
    found = piece[first:last].flatten()[begin - first * per_row : end - first * per_row].float()
    if not bool(torch.isfinite(found).all()):
        raise ForeignModelError(f"{hugging_face_name(name)} holds values that are not finite.")
    return found


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return f"The tensor {listed[0]} is" if len(listed) == 1 else f"{len(listed)} tensors ({', '.join(listed[:3])} …) are"
