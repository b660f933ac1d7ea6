"""A toy: next-token likelihood with z-loss, and two metrics, from logits. CONTRIBUTING.md shows it as the example of a new loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stages.record.settings import Field
from stages.training.losses.loss import Loss, TorchBatch

if TYPE_CHECKING:
    from torch import Tensor

    from stages.training.data.reader import Batch


class ZLoss(Loss):
    """Cross-entropy plus a share of the squared log-partition function."""

    name: Literal["z"] = Field("z", decides=True)
    """Name of the loss."""
    weight: float = Field(1e-4, ge=0, decides=True)
    """Weight of the second term. Source of 1e-4: PaLM (arXiv 2204.02311), section 5."""

    def units(self, batch: Batch) -> int:
        """Returns the number of tokens with a label."""
        return batch.targets

    def sums(self, hidden_BLD: Tensor, head_VD: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """See Loss.sums. Metrics: accuracy of the most likely token, and log_z_squared."""
        import torch.nn.functional as F

        labels_N, logits_NV = batch.labels, (batch.at_targets(hidden_BLD) @ head_VD.T).float()
        log_z_squared = logits_NV.logsumexp(1).square().sum()
        metrics = {"accuracy": (logits_NV.argmax(1) == labels_N).sum(), "log_z_squared": log_z_squared.detach()}
        return F.cross_entropy(logits_NV, labels_N, reduction="sum") + self.weight * log_z_squared, metrics
