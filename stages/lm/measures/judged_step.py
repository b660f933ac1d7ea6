"""Replays the steps of a training from a snapshot: the job of it, and what a replay to a spike finds.

A job with `blame` set trains up to the step before that one, writes no snapshot, and judges the batch of the step (lm/train/blame.py).
Guarantee: the job's own folders are only read. Snapshots are linked into the folder of the replay, so nothing deletes them meanwhile.
Cost: the steps from the snapshot on.
The module does not import torch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from stages.lm.measures.metrics import read_metrics
from stages.lm.train.job import RankJob

FOLDERS = ("resume", "milestones")
"""Where snapshots are: in the scratch folder of a run, and in a published checkpoint."""
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class PieceGradient:
    """What one piece of a batch adds to the gradient of its step.

    Attributes:
        sequence: Number of its sequence.
        segment: Number of its segment in the sequence; -1 for a whole sequence, where the loss has no parts by segment.
        tokens: Its tokens.
        units: Its units, as the loss counts them.
        loss: Its summed loss; None if it is not finite.
        grad_norm: Norm of the gradient of its summed loss over the units of the whole batch, before clipping; None if it is not finite.
    """

    sequence: int
    segment: int
    tokens: int
    units: int
    loss: float | None
    grad_norm: float | None


@dataclass(frozen=True)
class JudgedStep:
    """A batch and its pieces, judged with the weights before the update of the step.

    Attributes:
        step: The step, from 1.
        replayed_from: Finished steps of the weights that the replay started with.
        loss: Mean loss of the batch per unit; None if it is not finite.
        grad_norm: Gradient norm of the batch before clipping; None if it is not finite.
        pieces: Pieces of the batch that have a unit.
        judged: Those that were judged alone, worst first.
    """

    step: int
    replayed_from: int
    loss: float | None
    grad_norm: float | None
    pieces: int
    judged: tuple[PieceGradient, ...]


def judging(job: RankJob, left: Sequence[Path], step: int) -> RankJob:
    """Returns the job that replays another up to a step, after linking the snapshots that it can start from into its scratch folder.

    Args:
        job: The job. Its scratch folder is that of the replay, and empty.
        left: Folders that earlier runs of the job left: scratch folders and the published checkpoint.
        step: The step to judge, from 1; one of the job's own.
    """
    newest, fingerprint = -1, job.fingerprint()
    source: tuple[Path, list[Path]] | None = None
    for folder in left:
        usable = {number: path for number, path in _snapshots(folder, fingerprint) if job.continuation.step < number < step}
        if max(usable, default=-1) > newest:
            newest, source = max(usable), (folder, list(usable.values()))
    if source:
        folder, found = source
        own = Path(job.scratch)
        for path in found:
            shutil.copytree(path, own / FOLDERS[0] / path.name, copy_function=_link)
        kept = [line for line in read_metrics(folder / METRICS) if line["step"] <= newest]
        (own / METRICS).write_text("".join(json.dumps(line) + "\n" for line in kept))
    return replace(job, blame=step)


def found_snapshot(job: RankJob) -> bool:
    """Returns whether a job that `judging` returned starts from a snapshot, and not where the training began."""
    return (Path(job.scratch) / FOLDERS[0]).is_dir()


def write_judged(judged: JudgedStep, scratch: Path) -> None:
    """Writes what a replay found."""
    (scratch / "judged.json").write_bytes(_adapter().dump_json(judged))


def read_judged(scratch: Path) -> JudgedStep:
    """Returns what a replay found."""
    return _adapter().validate_json((scratch / "judged.json").read_bytes())


def _snapshots(folder: Path, fingerprint: str) -> Iterator[tuple[int, Path]]:
    """Yields (finished steps, folder) of the job's snapshots below a folder. Their files are verified when they are read."""
    for place in FOLDERS:
        for path in sorted((folder / place).glob("step-*")):
            try:
                trainer = json.loads((path / "trainer.json").read_bytes())
                if path.suffix != ".partial" and trainer["fingerprint"] == fingerprint:
                    yield int(trainer["step"]), path
            except (OSError, ValueError, KeyError):
                continue  # damaged: an older one does


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _adapter() -> TypeAdapter[JudgedStep]:
    return TypeAdapter(JudgedStep)
