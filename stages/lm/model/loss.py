"""The base class of the losses, batches as tensors, and the log-probabilities of a sequence's segments.

A loss returns the *sum* over one micro-batch and the number of units in that sum. The trainer divides by the units of the whole global
batch, so neither gradient accumulation nor the number of ranks changes the loss.
To add a loss, write one file next to loss_next_token.py and one line in lm/train/training_parts.py; CONTRIBUTING.md shows an example.
The module imports torch only when a loss is computed.

Shape legend: B sequences, L tokens, N target tokens, V vocabulary, P segments of a sequence (DPO: 0 chosen, 1 rejected).
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
    """A Batch as tensors on one device.

    Attributes:
        tokens, positions, docs, labels: int64 [B, L], see `Batch`.
        keep: bool [B, L], True at positions with a label.
        references: float32 [B, P], log-probabilities under the reference model; None without one.
    """

    tokens: Tensor
    positions: Tensor
    docs: Tensor
    labels: Tensor
    keep: Tensor
    references: Tensor | None


class Loss(StageConfig):
    """A function of logits and labels that training minimises."""

    name: str = Field(decides=True)
    """Name of the loss."""

    trim_to: ClassVar[int] = 0
    """Batches are cut to the smallest multiple of this many tokens that holds their longest sequence. 0: always seq_len."""

    @abstractmethod
    def units(self, batch: Batch) -> int:
        """Returns the number of units (tokens, pairs or others) of a batch. The loss and its metrics are means over units."""

    @abstractmethod
    def sums(self, logits_NV: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss and the metrics of a micro-batch, each summed over its units.

        The trainer records every metric per step, and per evaluation as validation_<name>. The metrics appear in metrics.jsonl,
        metrics.parquet, the view step_metrics and the report. Every micro-batch must return the same metric names.

        Args:
            logits_NV: Logits at the positions in batch.keep.
            batch: The batch, on the device of the logits.

        Returns:
            The sum of the loss, a scalar with gradient, and metric -> sum, scalars without gradient.
        """


def to_torch(batch: Batch, device: torch.device) -> TorchBatch:
    """Returns a batch as tensors on the device."""
    import torch

    from stages.lm.data.reader import IGNORE

    labels = torch.from_numpy(batch.labels)
    references = None if batch.references is None else torch.from_numpy(batch.references).float().to(device)
    tokens, positions, docs = (torch.from_numpy(a).to(device) for a in (batch.tokens, batch.positions, batch.docs))
    return TorchBatch(tokens, positions, docs, labels.to(device), (labels != IGNORE).to(device), references)


def segment_log_probs(logits_NV: Tensor, batch: TorchBatch, segments: int) -> Tensor:
    """Returns the sum of the labels' log-probabilities per segment, fp32 [B, P].

    Args:
        logits_NV: Logits at the positions in batch.keep.
        batch: The batch, on the device of the logits.
        segments: P, the number of segments per sequence.
    """
    import torch
    import torch.nn.functional as F

    log_probs_N = -F.cross_entropy(logits_NV.float(), batch.labels[batch.keep], reduction="none")
    sequence_N, _ = batch.keep.nonzero(as_tuple=True)
    slot_N = sequence_N * segments + batch.docs[batch.keep]
    flat = torch.zeros(batch.tokens.shape[0] * segments, device=log_probs_N.device)
    return flat.index_add(0, slot_N, log_probs_N).view(-1, segments)
