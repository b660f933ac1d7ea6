"""Garbage collection: removes artifacts that no kept run needs. Shows first what and how much; runs stay on record.

Kept are the newest finished runs of each recipe, with everything their artifacts were made from; a run that stopped early
(`--until`, one stage) counts apart, so that it never stands in for the whole road. Guarantee: holds the home, so that no run is
under way; a manifest goes first, so that a kill leaves no artifact that looks whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.core import lineage, manifest, runs

NEEDED = """
WITH RECURSIVE kept AS (
  SELECT run_id FROM (SELECT run_id, row_number() OVER (
    PARTITION BY recipe, command->>'flow', command->>'until', command->>'node' ORDER BY started DESC) AS age
    FROM run WHERE state = 'done') WHERE age <= $1
), needed(artifact_id) AS (
  SELECT artifact_id FROM node_run JOIN kept USING (run_id) WHERE artifact_id <> ''
  UNION
  SELECT edge.parent FROM needed JOIN edge ON edge.child = needed.artifact_id
)
SELECT artifact_id, node, bytes, run_id AS built_by FROM artifact WHERE artifact_id NOT IN (SELECT artifact_id FROM needed) ORDER BY ended
"""


def collectable(home: Path, keep_runs: int) -> list[dict[str, Any]]:
    """Artifacts (artifact_id, node, bytes, built_by) that none of the newest `keep_runs` finished runs of any recipe needs."""
    lineage.update(home)
    return lineage.records(home, NEEDED, [keep_runs])


def collect(home: Path, names: Sequence[str]) -> int:
    """Removes artifacts by name and indexes anew; returns the bytes freed."""
    freed = 0
    with runs.home_lock(home):
        for name in names:
            folder = home / "artifacts" / name
            artifact = manifest.read_artifact(folder)
            (folder / manifest.NAME).unlink()
            shutil.rmtree(folder)
            freed += int(artifact.manifest["bytes"])
        lineage.reindex(home)
    return freed
