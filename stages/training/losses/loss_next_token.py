"""The next-token loss of pretraining and SFT, with an optional z-loss. For SFT, the mask in the labels limits it to the trained tokens.

Source: PaLM (arXiv 2204.02311), section 5, for the z-loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from stages.record.settings import Field
from stages.training.losses.loss import Loss, TorchBatch

if TYPE_CHECKING:
    from torch import Tensor

    from stages.training.data.reader import Batch


class NextTokenLoss(Loss):
    """Negative log-likelihood of every token with a label, in nats."""

    name: Literal["next_token"] = Field("next_token", decides=True)
    """Name of the loss."""
    z_loss: float = Field(0.0, ge=0, le=1, decides=True)
    """Weight of the squared logarithm of the softmax's normalizer, which keeps logits from growing; 0 leaves it out. PaLM uses 1e-4. The
    validation loss is without it."""

    def units(self, batch: Batch) -> int:
        """Returns the number of tokens with a label."""
        return batch.targets

    def sums(self, hidden_BLD: Tensor, head_VD: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss, and with a z-loss its part of the loss as the metric z_loss; see Loss.sums."""
        import torch

        from stages.training.losses.linear_cross_entropy import cross_entropy_sum

        total, z_part = cross_entropy_sum(batch.at_targets(hidden_BLD), head_VD, batch.labels, self.z_loss)
        loss = total if torch.is_grad_enabled() else total - z_part
        return loss, {"z_loss": z_part} if self.z_loss else {}

    def nats(self, loss: float, metrics: Mapping[str, float], trains: bool) -> float:
        """Returns the loss without the z-loss; see Loss.nats."""
        return loss - metrics.get("z_loss", 0.0) if trains else loss
