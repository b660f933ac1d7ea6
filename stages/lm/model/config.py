"""The shape of a model, as `model.json` stores it and as `loam plan` reads it for its estimates. The module does not import torch.

Guarantee: the model of every ModelConfig can be built; an impossible combination of values raises ShapeError.
Source: Llama 3 (arXiv 2407.21783) for the architecture, Qwen3 (arXiv 2505.09388) for the norm on queries and keys.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path


class ShapeError(ValueError):
    """A model shape that cannot be built."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-style decoder, with the field names of transformers' config.json (except qk_norm).

    hidden_size and intermediate_size are in channels. max_position_embeddings is the sequence length of training, in tokens.

    Raises:
        ShapeError: The values do not fit together.
    """

    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise ShapeError(f"model.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.hidden_size % self.num_attention_heads:
            raise ShapeError(
                f"model.hidden_size {self.hidden_size} is not divisible by model.num_attention_heads {self.num_attention_heads}; change one of them."
            )
        if self.head_dim % 2:
            raise ShapeError(
                f"A head has {self.head_dim} channels, which RoPE cannot rotate in pairs; make model.hidden_size / model.num_attention_heads even."
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ShapeError(
                f"model.num_attention_heads {self.num_attention_heads} is not divisible by model.num_key_value_heads {self.num_key_value_heads}; change one of them."
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def to_json(self) -> dict:
        return dataclasses.asdict(self)


def write_model_config(config: ModelConfig, path: Path) -> None:
    """Writes model.json with sorted keys, so equal configs give equal bytes."""
    path.write_text(json.dumps(config.to_json(), indent=1, sort_keys=True) + "\n")


def read_model_config(path: Path) -> ModelConfig:
    """Returns the config in a model.json."""
    return ModelConfig(**json.loads(path.read_text()))
