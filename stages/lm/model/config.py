"""The shape of a model, as the recipe, `model.json` and `loam plan` use it. The module does not import torch.

Guarantee: the model of every ModelConfig can be built; an impossible combination of values raises pydantic's ValidationError, a ValueError.
Source: Llama 3 (arXiv 2407.21783) for the architecture, Qwen3 (arXiv 2505.09388) for the norm on queries and keys.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from stages.settings import Field, StageConfig


Recompute = Literal["none", "feed_forward", "block"]
"""What the backward pass computes again instead of keeping it: nothing, the inside of feed-forward layers, or the inside of blocks."""


class ModelShape(StageConfig):
    """The part of a model's shape that a recipe gives, with the field names of transformers' config.json (except qk_norm).

    The tokenizer decides the vocabulary, and mix.seq_len the context length.
    """

    num_hidden_layers: int = Field(ge=1, le=10_000)
    """Transformer blocks."""
    hidden_size: int = Field(ge=1, le=1 << 20)
    """Channels of the residual stream."""
    num_attention_heads: int = Field(ge=1)
    """Attention heads. hidden_size / num_attention_heads must be an even integer."""
    num_key_value_heads: int = Field(ge=1)
    """Key-value heads (grouped-query attention, arXiv 2305.13245). Must divide num_attention_heads."""
    intermediate_size: int = Field(ge=1, le=1 << 24)
    """Channels inside the SwiGLU feed-forward layer."""
    rope_theta: float = Field(10_000.0, ge=1, le=1e30)
    """Base of the RoPE frequencies (arXiv 2104.09864); 500,000 in Llama 3."""
    rms_norm_eps: float = Field(1e-5, gt=0, lt=1)
    """Epsilon of RMSNorm, as in Llama."""
    tie_word_embeddings: bool = False
    """Whether the output head shares the embedding table, as in small Llama 3.2 models."""
    qk_norm: bool = False
    """Whether queries and keys pass an RMSNorm, as in Qwen3. Such a model is exported as Qwen3ForCausalLM."""

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} is not divisible by model.num_attention_heads {self.num_attention_heads}; change one of them."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"A head has {self.head_dim} channels, which RoPE cannot rotate in pairs; make model.hidden_size / model.num_attention_heads even."
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"model.num_attention_heads {self.num_attention_heads} is not divisible by model.num_key_value_heads {self.num_key_value_heads}; change one of them."
            )
        return self

    @property
    def head_dim(self) -> int:
        """Channels per attention head."""
        return self.hidden_size // self.num_attention_heads


class ModelConfig(ModelShape):
    """The whole shape of a model: what the recipe gives, the vocabulary and the context length."""

    vocab_size: int = Field(ge=1)
    """Entries of the vocabulary."""
    max_position_embeddings: int = Field(ge=1)
    """Sequence length of training, in tokens."""

    def to_json(self) -> dict[str, int | float | bool]:
        """Returns the fields as plain values."""
        return self.model_dump()


def write_model_config(config: ModelConfig, path: Path) -> None:
    """Writes model.json with sorted keys, so equal configs give equal bytes."""
    path.write_text(json.dumps(config.to_json(), indent=1, sort_keys=True) + "\n")


def read_model_config(path: Path) -> ModelConfig:
    """Returns the config in a model.json."""
    return ModelConfig.model_validate_json(path.read_text())
