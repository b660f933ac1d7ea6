"""What is minimised: next-token likelihood (pretraining, and SFT through the mask in the labels) and DPO.

An objective gives, for one micro-batch, the *sum* of its loss and how many units the sum is over. The trainer divides by
the units of the whole global batch, so neither gradient accumulation nor the number of ranks changes the loss.
Guarantee: DPO equals TRL's sigmoid loss (tested). Source: DPO (arXiv 2305.18290), equation 7.

Shape legend: B rows, L tokens, N target tokens, V vocabulary, P pieces of a row (DPO: 0 chosen, 1 rejected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.lm.data.reader import IGNORE, Batch


@dataclass(frozen=True)
class TorchBatch:
    """A Batch as tensors on one device; keep: bool [B, L], the positions with a label."""

    tokens: Tensor
    positions: Tensor
    docs: Tensor
    labels: Tensor
    keep: Tensor
    references: Tensor | None


@dataclass(frozen=True)
class Objective:
    """name: for messages. units(batch): what the loss is averaged over. loss(logits_NV, batch) -> (sum, sums of metrics).

    trim_to: rows are cut to a multiple of this many tokens (0: always seq_len).
    """

    name: str
    units: Callable[[Batch], int]
    loss: Callable[[Tensor, TorchBatch], tuple[Tensor, dict[str, Tensor]]]
    trim_to: int = 0


def to_torch(batch: Batch, device: torch.device) -> TorchBatch:
    """Moves a batch to the device."""
    labels = torch.from_numpy(batch.labels)
    references = None if batch.references is None else torch.from_numpy(batch.references).float().to(device)
    tokens, positions, docs = (torch.from_numpy(a).to(device) for a in (batch.tokens, batch.positions, batch.docs))
    return TorchBatch(tokens, positions, docs, labels.to(device), (labels != IGNORE).to(device), references)


def language_modelling() -> Objective:
    """Negative log-likelihood of every labelled token, in nats."""

    def loss(logits_NV: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return F.cross_entropy(logits_NV.float(), batch.labels[batch.keep], reduction="sum"), {}

    return Objective("language modelling", lambda batch: batch.targets, loss)


def preference(beta: float) -> Objective:
    """DPO's sigmoid loss over pairs: -log sigmoid(beta · ((chosen - rejected) - the same under the reference model))."""

    def loss(logits_NV: Tensor, batch: TorchBatch) -> tuple[Tensor, dict[str, Tensor]]:
        if batch.references is None:
            raise ValueError("DPO needs the log-probabilities of a reference model; the rows carry none.")
        policy_BP = piece_log_probs(logits_NV, batch, 2)
        rewards_BP = beta * (policy_BP - batch.references)
        margin_B = rewards_BP[:, 0] - rewards_BP[:, 1]
        real_B = (batch.docs == 1).any(1)
        detached = margin_B.detach()[real_B]
        metrics = {
            "reward_accuracy": (detached > 0).sum(),
            "reward_margin": detached.sum(),
            "logprob_accuracy": (policy_BP[:, 0] > policy_BP[:, 1]).detach()[real_B].sum(),
        }
        return -F.logsigmoid(margin_B)[real_B].sum(), metrics

    return Objective("preference", lambda batch: int((batch.rows >= 0).sum()), loss, trim_to=16)


def piece_log_probs(logits_NV: Tensor, batch: TorchBatch, pieces: int) -> Tensor:
    """Sum of the labels' log-probabilities per piece: [B, P], fp32."""
    log_probs_N = -F.cross_entropy(logits_NV.float(), batch.labels[batch.keep], reduction="none")
    row_N, _ = batch.keep.nonzero(as_tuple=True)
    slot_N = row_N * pieces + batch.docs[batch.keep]
    flat = torch.zeros(batch.tokens.shape[0] * pieces, device=log_probs_N.device)
    return flat.index_add(0, slot_N, log_probs_N).view(-1, pieces)
