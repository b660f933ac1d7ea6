"""Finds what the shards of a stage took when this home last built its node. Slurm's elements are made long enough by it.

Guarantee: only a saving of time follows from it, no byte of an output.
Cost: the manifests of the node from the newest back to the first that has the figure.
"""

from __future__ import annotations

from pathlib import Path

from stages.record.contract.errors import VerificationError
from stages.record.store import manifest, names
from stages.record.store.manifest_schema import ShardTimeEntry


def earlier_times(home: Path, node: str, label: str) -> tuple[ShardTimeEntry, str] | None:
    """Returns what the shards of a label took in the newest build of a node here that recorded it, and the artifact's alias; None if none did."""
    folder = home / "artifacts" / names.path_part(node)
    for path in sorted(folder.glob(f"*/{manifest.NAME}"), key=lambda path: (path.stat().st_mtime_ns, path), reverse=True):
        try:
            artifact = manifest.read_artifact(path.parent)
        except (VerificationError, OSError):  # damaged, or removed meanwhile: it only saves time
            continue
        took = artifact.manifest.get("shards", {}).get(label)
        if took and took["size"] and took["seconds"] and not manifest.is_imported(artifact):
            return took, artifact.manifest["alias"]
    return None
