"""A toy: SGD with momentum, one state tensor and no update count. CONTRIBUTING.md shows it as the example of a new optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stages.record.settings import Field
from stages.training.optimizers.optimizer import Optimizer, ParameterGroup, Partition

if TYPE_CHECKING:
    import torch


class Momentum(Optimizer):
    """Gradient descent with momentum."""

    name: Literal["momentum"] = Field("momentum", decides=True)
    """Name of the optimizer."""
    momentum: float = Field(0.9, ge=0, lt=1, decides=True)
    """Fraction of the velocity that each step keeps."""

    state: ClassVar[Mapping[str, Partition]] = {"velocity": Partition.AS_PARAMETER}

    def build(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        """See Optimizer.build."""
        import torch

        class TorchMomentum(torch.optim.Optimizer):
            """The update, element by element."""

            @torch.no_grad()
            def step(self, closure: Any = None) -> None:
                """Velocity = momentum · velocity + gradient; parameter -= lr · (velocity + weight_decay · parameter)."""
                for group in self.param_groups:
                    for param in (p for p in group["params"] if p.grad is not None):
                        velocity = self.state[param].setdefault("velocity", torch.zeros_like(param))
                        velocity.mul_(group["momentum"]).add_(param.grad)
                        param.sub_(group["lr"] * (velocity + group["weight_decay"] * param))

        return TorchMomentum(groups, {"lr": 0.0, "momentum": self.momentum})
