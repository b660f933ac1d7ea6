"""Rotary position embedding (RoPE): frequencies, also with the scaling of Llama 3 and with YaRN, and the rotation of queries and keys.

Guarantee: frequencies, cos and sin are fp32, and x is rotated in fp32 and rounded once, to its own dtype. A table in bf16 would round cos and
sin to 8 bits first. Frequencies equal those of transformers (tested).
Cost: one cos and one sin per position and channel of a head, once per forward pass; twice if some blocks have scaled RoPE and others not.
Source: RoPE (arXiv 2104.09864); the scalings are `rope_type: llama3` of transformers, from Meta's reference code of Llama 3.1, and `yarn`, from
arXiv 2309.00071 with the reference code's whole numbers of channels.

Shape legend: C channels per head; B, L and H as in training/model/llama.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stages.training.model.config import Llama3Scaling, ModelConfig, RopeScaling, YarnScaling


def frequencies(config: ModelConfig, scaling: RopeScaling | None, device: torch.device) -> Tensor:
    """Returns the angles in radians by which one position rotates the pairs of channels, fp32 [C/2].

    A scaling slows a pair that turns seldom in the original context down by `factor`. One that turns often keeps its frequency. Between them the
    frequency is interpolated.
    """
    channels = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    unscaled = 1.0 / (config.rope_theta ** (channels / config.head_dim))
    if isinstance(scaling, Llama3Scaling):
        turns = scaling.original_max_position_embeddings / (2 * math.pi / unscaled)
        kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    elif isinstance(scaling, YarnScaling):
        fast, slow = (_pair_that_turns(turns, config, scaling) for turns in (scaling.beta_fast, scaling.beta_slow))
        low, high = max(math.floor(fast), 0), min(math.ceil(slow), config.head_dim - 1)
        kept = 1 - ((channels / 2 - low) / (high - low or 0.001)).clamp(0, 1)  # transformers has 0.001 for no distance, too
    else:
        return unscaled
    return (1 - kept) * unscaled / scaling.factor + kept * unscaled


def _pair_that_turns(turns: float, config: ModelConfig, scaling: RopeScaling) -> float:
    """Returns the number of the pair of channels, with a fraction, that turns so many times in the original context."""
    wavelength = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
    return config.head_dim * math.log(wavelength) / (2 * math.log(config.rope_theta))


def rotation_at(positions: Tensor, config: ModelConfig, scaling: RopeScaling | None) -> tuple[Tensor, Tensor]:
    """Returns cos and sin of RoPE at the positions, each fp32 [..., C], times the attention factor of YaRN.

    Args:
        positions: int64 [...], of a shape that broadcasts against x without its channels: [B, 1, L] for x [B, H, L, C].
        config: Shape of the model.
        scaling: config.rope_scaling, or None for blocks that keep their RoPE.
    """
    angle = positions[..., None].float() * frequencies(config, scaling, positions.device)
    angle = torch.cat([angle, angle], -1)
    if isinstance(scaling, YarnScaling):
        return angle.cos() * scaling.attention_factor, angle.sin() * scaling.attention_factor
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
