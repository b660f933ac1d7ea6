"""Garbage collection: removes artifacts that no kept run needs, and scratch. Shows first what and how much; runs stay on record.

Kept are the newest finished runs of each recipe, with everything their artifacts were made from; a run that stopped early
(`--until`, one stage) counts apart, so that it never stands in for the whole road. What has a given name or was adopted is kept too.
Guarantee: holds the home alone, so that no run is under way; a manifest goes first, so that a kill leaves no artifact that
looks whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.core import integrity, lineage, manifest, names, runs

NEEDED = """
WITH RECURSIVE kept AS (
  SELECT run_id FROM (SELECT run_id, row_number() OVER (
    PARTITION BY recipe, command->>'flow', command->>'until', command->>'node' ORDER BY seq DESC) AS age
    FROM run WHERE state = 'done') WHERE age <= $1
  UNION SELECT unnest($2::VARCHAR[])
), needed(artifact_id) AS (
  SELECT artifact_id FROM node_run JOIN kept USING (run_id) WHERE artifact_id <> ''
  UNION SELECT unnest($2::VARCHAR[])
  UNION
  SELECT edge.parent FROM needed JOIN edge ON edge.child = needed.artifact_id
)
SELECT artifact_id, node, bytes, run_id AS built_by FROM artifact WHERE artifact_id NOT IN (SELECT artifact_id FROM needed) ORDER BY ended
"""
SCRATCH = "scratch/"


def collectable(home: Path, keep_runs: int) -> list[dict[str, Any]]:
    """What could go: artifact_id, node, bytes, built_by.

    Artifacts that none of the newest `keep_runs` finished runs of any recipe needs, and the scratch folders of stages that did not
    finish (named "scratch/..."; such a stage would go on from there, without it it starts anew).
    """
    lineage.update(home)
    rows = lineage.records(home, NEEDED, [keep_runs, sorted(set(names.all_names(home).values()))])
    rows = [row for row in rows if not _adopted(home / "artifacts" / row["artifact_id"])]
    for folder in sorted((home / "scratch").glob("*")):
        size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        rows.append({"artifact_id": SCRATCH + folder.name, "node": folder.name.rpartition("-")[0], "bytes": size, "built_by": ""})
    return rows


def _adopted(folder: Path) -> bool:
    """Whether an artifact was taken in from outside, so that no run could make it again."""
    return (folder / manifest.NAME).is_file() and "adopted" in manifest.read_artifact(folder).manifest


def collect(home: Path, found: Sequence[str]) -> int:
    """Removes artifacts and scratch by name, with leases that nobody holds; indexes anew; returns the bytes freed."""
    freed = 0
    with runs.hold_home(home, alone=True):
        for name in found:
            folder = home / name if name.startswith(SCRATCH) else home / "artifacts" / name
            freed += sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
            (folder / manifest.NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)
            names.forget_names(home, name)
            integrity.forget(home, name)
        for left in [*(home / "leases").glob("*"), *(home / "names").glob(".*"), *home.glob(".hashes.json.*")]:
            left.unlink()  # of killed processes: nobody works here now
        lineage.reindex(home)
    return freed
