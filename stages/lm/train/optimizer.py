"""AdamW with its parameter groups.

Guarantee: matrices decay, norms never, the embedding only where asked; both groups exist in a fixed order (decay first).
Source: Loshchilov and Hutter (arXiv 1711.05101). The client optimizer is torch's own: DeepSpeed's CPU Adam needs a compiler.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from stages.lm.train.job import OptimConfig


def decays(name: str, config: OptimConfig) -> bool:
    """Whether parameter `name` is under weight decay."""
    if "norm" in name:
        return False
    return config.decay_embeddings or not name.startswith("embedding.")


def adamw(named: Iterable[tuple[str, nn.Parameter]], config: OptimConfig) -> torch.optim.AdamW:
    """The optimizer over (decayed, not decayed) parameters; the learning rate is set before every step."""
    named = list(named)
    groups = [
        {"params": [p for name, p in named if decays(name, config)], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if not decays(name, config)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps)
