"""The base of the losses, and what they share: a batch as tensors, the log-probabilities of a row's pieces.

A loss gives, for one micro-batch, the *sum* of its loss and how many units the sum is over. The trainer divides by the units of the
whole global batch, so neither gradient accumulation nor the number of ranks changes the loss. A new loss is one file beside
loss_next_token.py and one line in training_parts.py; CONTRIBUTING.md shows it. No torch until a loss is computed.

Shape legend: B rows, L tokens, N target tokens, V vocabulary, P pieces of a row (DPO: 0 chosen, 1 rejected).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stages.settings import Field, StageConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from stages.lm.data.reader import Batch


@dataclass(frozen=True)
class TorchBatch:
    """A Batch as tensors on one device; keep: bool [B, L], the positions with a label."""

    tokens: Tensor
    positions: Tensor
    docs: Tensor
    labels: Tensor
    keep: Tensor
    references: Tensor | None


class Loss(StageConfig):
    """What training minimises."""

    name: str = Field(decides=True)
    """Name of the loss."""

    trim_to: ClassVar[int] = 0
    """Rows are cut to a multiple of this many tokens (0: always seq_len)."""

    @abstractmethod
    def units(self, batch: Batch) -> int:
        """How many tokens, pairs or other units of a batch the loss and its metrics are averaged over."""

    @abstractmethod
    def sums(self, logits_NV: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and the metrics of a micro-batch, each summed over its units.

        Every metric is recorded per step, and per evaluation as validation_<name>: in metrics.jsonl, metrics.parquet, the view
        step_metrics and the report. Every micro-batch must give the same metrics.

        Args:
            logits_NV: Logits at the positions in batch.keep.
            batch: The batch on the device of the logits.

        Returns:
            The sum of the loss, a scalar with its gradient, and metric -> sum, scalars without one.
        """


def to_torch(batch: Batch, device: torch.device) -> TorchBatch:
    """Moves a batch to the device."""
    import torch

    from stages.lm.data.reader import IGNORE

    labels = torch.from_numpy(batch.labels)
    references = None if batch.references is None else torch.from_numpy(batch.references).float().to(device)
    tokens, positions, docs = (torch.from_numpy(a).to(device) for a in (batch.tokens, batch.positions, batch.docs))
    return TorchBatch(tokens, positions, docs, labels.to(device), (labels != IGNORE).to(device), references)


def piece_log_probs(logits_NV: Tensor, batch: TorchBatch, pieces: int) -> Tensor:
    """Sum of the labels' log-probabilities per piece: [B, P], fp32."""
    import torch
    import torch.nn.functional as F

    log_probs_N = -F.cross_entropy(logits_NV.float(), batch.labels[batch.keep], reduction="none")
    row_N, _ = batch.keep.nonzero(as_tuple=True)
    slot_N = row_N * pieces + batch.docs[batch.keep]
    flat = torch.zeros(batch.tokens.shape[0] * pieces, device=log_probs_N.device)
    return flat.index_add(0, slot_N, log_probs_N).view(-1, pieces)
