"""AdamW in torch's fused implementation, because DeepSpeed's CPU Adam needs a compiler.

Cost: one pass over weight, gradient and moments, without temporaries.
Source: Loshchilov and Hutter (arXiv 1711.05101).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from stages.record.settings import Field
from stages.training.optimizers.optimizer import Optimizer, ParameterGroup, Partition

if TYPE_CHECKING:
    import torch

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = Field("adamw", decides=True)
    """Name of the optimizer."""
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), decides=True)
    """Decay rates of the two moments. Source of (0.9, 0.95): GPT-3 (arXiv 2005.14165) and Llama."""
    eps: float = Field(1e-8, gt=0, le=1, decides=True)
    """Added to the square root of the second moment. Source of 1e-8: Adam (arXiv 1412.6980), section 2."""

    state: ClassVar[Mapping[str, Partition]] = {
        "step": Partition.UPDATE_COUNT, "exp_avg": Partition.AS_PARAMETER, "exp_avg_sq": Partition.AS_PARAMETER,
    }  # fmt: skip

    def build(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the torch optimizer; see Optimizer.build."""
        import torch

        return torch.optim.AdamW(groups, lr=0.0, betas=self.betas, eps=self.eps, fused=True)
