"""What `loam stage --blame` asks a training stage, and its answer: the documents of a step and what each adds to the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BlameRequest:
    """Asks which documents cause what a step showed.

    Attributes:
        step: The step, from 1.
        left: Folders that earlier runs of the node left: its scratch folders and its artifact.
    """

    step: int
    left: tuple[Path, ...]


@dataclass(frozen=True)
class BlamedPart:
    """What a document adds to the gradient of a step.

    Attributes:
        sequence: Number of the sequence.
        segment: Number of the document's segment in it; of a preference pair, 0.
        doc_id: The document, conversation or pair.
        source: Its source.
        url: Its URL; empty for one that has none.
        tokens: Tokens of the segment, or of both answers of a pair.
        loss: Mean loss of its targets (nats per token) or of the pair; None if it is not finite.
        grad_norm: Norm of the gradient that it alone adds to that of the batch; None if it is not finite.
        share: grad_norm over the gradient norm of the batch. It can be above 1, because gradients can cancel out.
    """

    sequence: int
    segment: int
    doc_id: str
    source: str
    url: str
    tokens: int
    loss: float | None
    grad_norm: float | None
    share: float | None


@dataclass(frozen=True)
class Blame:
    """The documents of a step, worst first: those without a finite loss and gradient, then by the norm of their gradient.

    Attributes:
        step: The step, from 1.
        replayed_from: Finished steps of the snapshot that the replay started from.
        loss: Mean loss of the batch; None if it is not finite.
        grad_norm: Gradient norm of the batch before clipping; None if it is not finite.
        parts_of_batch: Segments (or pairs) of the batch with something to train on.
        parts: Those that were judged alone.
    """

    step: int
    replayed_from: int
    loss: float | None
    grad_norm: float | None
    parts_of_batch: int
    parts: tuple[BlamedPart, ...]
