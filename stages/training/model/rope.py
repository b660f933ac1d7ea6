"""Rotary position embedding (RoPE): frequencies, also with Llama 3's scaling, and the rotation of queries and keys.

Guarantee: frequencies, cos and sin are fp32, and x is rotated in fp32 and rounded once, to its own dtype. A table in bf16 would round cos and
sin to 8 bits first. Frequencies equal those of transformers (tested).
Cost: one cos and one sin per position and channel of a head, once per forward pass.
Source: RoPE (arXiv 2104.09864); the scaling is `rope_type: llama3` of transformers, from Meta's reference code of Llama 3.1.

Shape legend: C channels per head; B, L and H as in training/model/llama.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stages.training.model.config import ModelConfig


def frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Returns the angles in radians by which one position rotates the pairs of channels, fp32 [C/2].

    With `rope_scaling`, a pair that turns less than low_freq_factor times in the original context is slowed down by `factor`. One that turns
    more than high_freq_factor times keeps its frequency. Between them the frequency is interpolated.
    """
    channels = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    unscaled = 1.0 / (config.rope_theta ** (channels / config.head_dim))
    scaling = config.rope_scaling
    if scaling is None:
        return unscaled
    turns = scaling.original_max_position_embeddings / (2 * math.pi / unscaled)
    kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * unscaled / scaling.factor + kept * unscaled


def rotation_at(positions: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Returns cos and sin of RoPE at the positions, each fp32 [..., C].

    Args:
        positions: int64 [...], of a shape that broadcasts against x without its channels: [B, 1, L] for x [B, H, L, C].
        config: Shape of the model.
    """
    angle = positions[..., None].float() * frequencies(config, positions.device)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x rotated by RoPE, in the dtype of x. Layout "rotate half" of transformers: channel i pairs with channel i + C/2.

    Args:
        x: Queries or keys, [..., C].
        cos: From `rotation_at`.
        sin: From `rotation_at`.
    """
    wide = x.float()
    first, second = wide.chunk(2, -1)
    return (wide * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)
