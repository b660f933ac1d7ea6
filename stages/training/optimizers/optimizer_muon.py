"""Muon for the matrices of the blocks and AdamW for embedding, head and norms, as one optimizer. The embedding has a learning rate of its own.

A matrix moves by an orthogonal matrix near its momentum, so all directions of the update have about the same size.
Guarantee: a step updates every hidden matrix, or it fails. The update is that of the whole matrix for any number of ranks: the ranks exchange
partitions before and after (muon_step.py). Clipping, gradient norm and accumulation are those of every optimizer.
Cost: one tensor of state per hidden matrix (AdamW has two). Per step, 5 · (4 · m² · n + 2 · m³) FLOPs for a matrix with sides m <= n,
divided over the ranks, and every rank sends 8 bytes per element of its partitions of the matrices. With four layers of
width 128 a step takes 35 ms on one CPU thread (AdamW: 5 ms).
Source: Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/), Moonlight (arXiv 2502.16982) for weight decay and the exchange.
DeepSpeed 0.19.8 has a Muon for ZeRO 3 too. It is not used: it clips the norm of the orthogonalized updates in place of that of the gradients,
it needs whole gradients on every rank (reduce_scatter: false), and it compiles its update, which needs a compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from stages.record.settings import Field
from stages.training.optimizers.optimizer import Optimizer, ParameterGroup, Partition
from stages.training.optimizers.optimizer_adamw import AdamW, Beta

if TYPE_CHECKING:
    import torch


class Muon(Optimizer):
    """Muon for hidden matrices, AdamW for all other parameters. `learning_rate` is the peak rate of the matrices."""

    name: Literal["muon"] = Field("muon", decides=True)
    """Name of the optimizer."""
    momentum: float = Field(0.95, ge=0, lt=1, decides=True)
    """Decay rate of the momentum, which is of Nesterov's kind. Source of 0.95: Jordan et al. 2024."""
    newton_schulz_steps: int = Field(5, ge=1, le=20, decides=True)
    """Newton-Schulz steps per update. Source of 5: Jordan et al. 2024."""
    newton_schulz_precision: Literal["fp32", "bf16"] = Field("fp32", decides=True)
    """Precision of the Newton-Schulz steps. Source of fp32: machines then differ only by fp32 rounding. Jordan et al. use bf16, which is faster."""
    adamw_learning_rate_ratio: float = Field(0.3, gt=0, le=1000, decides=True)
    """Learning rate of head, norms and filters, and of a table that is embedding and head, as a fraction of that of the matrices. Source of 0.3: 0.006 and 0.02,
    measured with tiny; in tests/bench/quality 0.15 was worse (one seed)."""
    embedding_learning_rate_ratio: float = Field(0.3, gt=0, le=1000, decides=True)
    """Learning rate of an embedding that is not the head too, as a fraction of that of the matrices. Source of 0.3: that of head and norms; so
    were configs/tiny.yaml and its fine-tuning measured. From random weights 1.0 was better by 0.019 bits per byte in tests/bench/quality (one seed)."""
    adamw_betas: tuple[Beta, Beta] = Field((0.9, 0.95), decides=True)
    """Decay rates of AdamW's two moments. Source of (0.9, 0.95): GPT-3 (arXiv 2005.14165) and Llama."""
    adamw_eps: float = Field(1e-8, gt=0, le=1, decides=True)
    """Added by AdamW to the square root of the second moment. Source of 1e-8: Adam (arXiv 1412.6980), section 2."""

    state: ClassVar[Mapping[str, Partition]] = AdamW.state
    matrix_state: ClassVar[Mapping[str, Partition] | None] = {"step": Partition.UPDATE_COUNT, "momentum": Partition.AS_PARAMETER}

    def build(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        """Return the torch optimizer; see Optimizer.build."""
        from stages.training.optimizers.muon_step import MuonWithAdamW

        return MuonWithAdamW(groups, self)
