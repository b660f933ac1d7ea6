"""Compares a trained checkpoint with its receipt: whether the hash chain follows from the artifact's own files.

Guarantee: read-only. A file that cannot be read is a fault and no error.
Cost: one pass over the table `steps` and the metrics. The files of the checkpoints are hashed only where the manifest's sums are not known to be
right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stages.record.contract.declaration import Artifact
from stages.record.store import manifest
from stages.record.store.external import sha256_file

if TYPE_CHECKING:
    import numpy as np


def receipt_faults(artifact: Artifact, intact: bool) -> list[str]:
    """Returns the first thing in which an artifact and its receipt differ, as a list of at most one line.

    Args:
        artifact: Any artifact. One that no steps made has no receipt and no fault.
        intact: Whether its files were just found to have the sha256 of the manifest.
    """
    from stages.training.checkpoints import receipt
    from stages.training.measures.metrics import read_metrics

    if not has_windows(artifact):
        return []
    known = {entry["path"]: entry["sha256"] for entry in manifest.files_of(artifact)} if intact else {}

    def sha256(path: Path) -> str:
        return known.get(path.relative_to(artifact.path).as_posix()) or sha256_file(path)

    try:
        lines = read_metrics(artifact.path / "metrics.jsonl")
        fault = receipt.fault_of(artifact.path, artifact.summary.get("receipt"), lines, _rows(artifact), sha256)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = f"It cannot be compared: {type(error).__name__} {error}."
    return [f"{artifact.path / receipt.NAME}: {fault}"] if fault else []


def has_windows(artifact: Artifact) -> bool:
    """Returns whether the artifact is a checkpoint that optimizer steps made, so that it has a receipt."""
    return artifact.manifest["kind"] == "checkpoint" and bool(artifact.summary.get("steps"))


def windows_of(artifact: Artifact) -> int:
    """Returns the number of windows of an artifact's receipt; 0 for an artifact that has none."""
    from stages.training.checkpoints import receipt

    return len(receipt.read_receipt(artifact.path).windows) if has_windows(artifact) else 0


def _rows(artifact: Artifact) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields the table `steps` in blocks of columns."""
    from stages.record.tables.parquet import read_batches
    from stages.training.checkpoints.receipt import COLUMNS

    for path in sorted((artifact.path / "steps").glob("*.parquet")):
        for batch in read_batches(path, COLUMNS):
            yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
