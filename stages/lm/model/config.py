"""The shape of a model, free of torch: what `model.json` holds and what `loam plan` counts with.

Guarantee: a ModelConfig that exists is one that can be built; an impossible combination raises ShapeError.
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
    """A Llama-style decoder. Widths in channels; max_positions in tokens (the sequence length it is trained for)."""

    vocab_size: int
    depth: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    max_positions: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "depth", "width", "heads", "kv_heads", "ffn_width", "max_positions"):
            if getattr(self, name) < 1:
                raise ShapeError(f"model.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.width % self.heads:
            raise ShapeError(f"model.width {self.width} is not divisible by model.heads {self.heads}; change one of them.")
        if self.head_width % 2:
            raise ShapeError(
                f"A head has {self.head_width} channels, which RoPE cannot rotate in pairs; make model.width / model.heads even."
            )
        if self.heads % self.kv_heads:
            raise ShapeError(f"model.heads {self.heads} is not divisible by model.kv_heads {self.kv_heads}; change one of them.")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def to_json(self) -> dict:
        return dataclasses.asdict(self)


def write_model_config(config: ModelConfig, path: Path) -> None:
    """Writes model.json (sorted keys, so equal configs are equal bytes)."""
    path.write_text(json.dumps(config.to_json(), indent=1, sort_keys=True) + "\n")


def read_model_config(path: Path) -> ModelConfig:
    """Reads model.json."""
    return ModelConfig(**json.loads(path.read_text()))
