"""The base class of the optimizers. One object declares an optimizer's settings, its state tensors and their partitioning.

Checkpoints, a resume at another number of ranks, the memory estimate and the fingerprint are derived from this declaration.
To add an optimizer, write one file next to optimizer_adamw.py and one line in training_parts.py; CONTRIBUTING.md shows an example.
Guarantee: weight decay applies to matrices, never to norms, and to the token embedding only with decay_embeddings. The parameter groups
have a fixed order: decayed first.
The module imports torch only when an optimizer is built, because processes without torch read the settings.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypedDict

from stages.settings import Field, StageConfig

if TYPE_CHECKING:
    import torch
    from torch import nn


class Partition(Enum):
    """The layout of one entry of an optimizer's state under ZeRO-3."""

    AS_PARAMETER = "as the parameter"
    """One fp32 element per element of the parameter, partitioned over the ranks like the parameter. The optimizer sees flat partitions of
    parameters, so it must compute such a state element by element."""
    UPDATE_COUNT = "update count"
    """A tensor with one fp32 number, the same in every group: the number of updates so far."""


class ParameterGroup(TypedDict):
    """A group of parameters as torch's optimizers take it."""

    params: list[nn.Parameter]
    weight_decay: float


class Optimizer(StageConfig):
    """An optimizer: settings, state declaration and constructor."""

    name: str = Field(decides=True)
    """Name of the optimizer."""

    state: ClassVar[Mapping[str, Partition]]
    """Entry of torch's `optimizer.state[parameter]` -> its partitioning."""

    @abstractmethod
    def build(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        """Returns the torch optimizer.

        Args:
            groups: Parameter groups with `params` (flat fp32 tensors of any length) and `weight_decay`. Before every step, the trainer
                sets `lr` of every group, and DeepSpeed clips the gradient norm.
        """

    @classmethod
    def tensors(cls) -> tuple[str, ...]:
        """Returns the state entries with one element per element of the parameter."""
        return tuple(name for name, partition in cls.state.items() if partition is Partition.AS_PARAMETER)

    @classmethod
    def counts(cls) -> tuple[str, ...]:
        """Returns the state entries that count updates."""
        return tuple(name for name, partition in cls.state.items() if partition is Partition.UPDATE_COUNT)


def decays(name: str, decay_embeddings: bool) -> bool:
    """Returns whether weight decay applies to parameter `name`."""
    if "norm" in name:
        return False
    return decay_embeddings or not name.startswith("embedding.")


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]], weight_decay: float, decay_embeddings: bool) -> list[ParameterGroup]:
    """Returns the parameter groups of an optimizer: decayed, then not decayed. Empty groups are left out.

    Args:
        named: The parameters with their names.
        weight_decay: Decoupled weight decay of the first group.
        decay_embeddings: Whether weight decay also applies to the token embedding.
    """
    named = list(named)
    groups: list[ParameterGroup] = [
        {"params": [p for name, p in named if decays(name, decay_embeddings)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decays(name, decay_embeddings)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
