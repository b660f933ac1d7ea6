"""The base of the optimizers: one object declares an optimizer's settings, its state tensors and how they are partitioned.

Checkpoint, resume at another number of ranks, memory estimate and fingerprint follow from the declaration. A new optimizer is one file
beside optimizer_adamw.py and one line in training_parts.py; CONTRIBUTING.md shows it.
Guarantee: matrices decay, norms never, the embedding only where asked; both parameter groups exist in a fixed order (decay first).
No torch until an optimizer is built: the settings are read where torch is not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from stages.settings import Field, StageConfig

if TYPE_CHECKING:
    import torch
    from torch import nn


class Partition(Enum):
    """How ZeRO-3 lays out one entry of an optimizer's state."""

    AS_PARAMETER = "as the parameter"
    """One fp32 element per element of the parameter, cut over the ranks as the parameter is. The optimizer gets flat pieces of
    parameters, so such a state may only be computed element by element."""
    UPDATE_COUNT = "update count"
    """A tensor of one fp32 number, the same in every group: how many updates were made."""


class Optimizer(StageConfig):
    """What turns gradients into updates."""

    name: str = Field(decides=True)
    """Name of the optimizer."""

    state: ClassVar[Mapping[str, Partition]]
    """Entry of torch's `optimizer.state[parameter]` -> how it is partitioned."""

    @abstractmethod
    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The torch optimizer.

        Args:
            groups: Parameter groups with `params` (flat fp32 tensors of any length) and `weight_decay`. The trainer sets `lr` of every
                group before every step, and limits the gradient norm.
        """

    @classmethod
    def tensors(cls) -> tuple[str, ...]:
        """The entries of the state that have one element per element of the parameter."""
        return tuple(name for name, partition in cls.state.items() if partition is Partition.AS_PARAMETER)

    @classmethod
    def counts(cls) -> tuple[str, ...]:
        """The entries of the state that count updates."""
        return tuple(name for name, partition in cls.state.items() if partition is Partition.UPDATE_COUNT)


def decays(name: str, decay_embeddings: bool) -> bool:
    """Whether parameter `name` is under weight decay."""
    if "norm" in name:
        return False
    return decay_embeddings or not name.startswith("embedding.")


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]], weight_decay: float, decay_embeddings: bool) -> list[dict[str, Any]]:
    """The groups (decayed, not decayed) that an optimizer is built from; an empty one is left out."""
    named = list(named)
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if decays(name, decay_embeddings)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decays(name, decay_embeddings)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
