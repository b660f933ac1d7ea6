"""The next-token loss of pretraining and SFT. For SFT, the mask in the labels limits it to the trained tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stages.lm.model.loss import Loss, TorchBatch
from stages.settings import Field

if TYPE_CHECKING:
    from torch import Tensor

    from stages.lm.data.reader import Batch


class NextTokenLoss(Loss):
    """Negative log-likelihood of every token with a label, in nats."""

    name: Literal["next_token"] = Field("next_token", decides=True)
    """Name of the loss."""

    def units(self, batch: Batch) -> int:
        """Returns the number of tokens with a label."""
        return batch.targets

    def sums(self, logits_NV: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss without further metrics; see Loss.sums."""
        import torch.nn.functional as F

        return F.cross_entropy(logits_NV.float(), batch.labels[batch.keep], reduction="sum"), {}
