"""Garbage collection: removes scratch folders and artifacts that no kept run needs. Run records stay (run_removal.py deletes one).

Kept are the artifacts of the newest finished runs of each recipe and everything that they were made from. Runs that stopped early
(`--until`, one stage) are counted separately, so that they never replace a run of the whole pipeline. Runs that failed, were interrupted
or were killed keep nothing. Artifacts with a given name, what a run with a given name needs, and imported artifacts are kept too.
Guarantee: gc holds the home alone before it lists, so no run works meanwhile, and it removes under the same lock what it listed. It refuses
while a manifest, a run record or a given name is damaged, because it cannot know what those keep. It removes a manifest first, so a kill
leaves no artifact that looks complete. The next gc removes the folder that remains. Scratch whose lease has a live owner is not listed and
not removed, also where the lock of the home does not reach, as on a file system that several machines share without locks.
Cost: one read of every run record; up to lease.STALE_S per lease of another boot.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from stages.core.contract.errors import RecipeError, StageError
from stages.core.index import database, schema
from stages.core.run.run_removal import finish_deletions
from stages.core.run.runner import lease_of_scratch
from stages.core.store import integrity, lease, manifest, names, runs

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
"""
OTHERS = """
SELECT artifact_id, node, bytes, run_id FROM artifact WHERE artifact_id NOT IN (SELECT artifact_id FROM needed) ORDER BY ended
"""
LOSERS = """
SELECT alias FROM run WHERE run_id IN (SELECT run_id FROM node_run WHERE list_contains($1::VARCHAR[], artifact_id)) ORDER BY seq DESC
"""
SCRATCH = "scratch/"


class Collectable(TypedDict):
    """A folder that gc would remove. artifact_id: "<node>/<folder>" or "scratch/<folder>". built_by: the run, or empty."""

    artifact_id: str
    node: str
    bytes: int
    built_by: str


def collectable(home: Path, keep_runs: int) -> list[Collectable]:
    """Returns what gc would remove. Removes nothing.

    These are artifacts that none of the newest `keep_runs` finished runs of any recipe needs, what a killed gc left of such artifacts, and
    the scratch folders of unfinished stages that nobody works on (named "scratch/..."). A stage would continue from its scratch; without
    it, it starts anew.
    A RecipeError is raised if the home has no artifacts, a StageError if a run works on the home or a record is damaged.
    """
    _refuse_no_home(home)
    with runs.hold_home(home, alone=True):
        return _listed(home, keep_runs)


def runs_that_lose(home: Path, found: Sequence[Collectable]) -> list[str]:
    """Returns the aliases of the recorded runs, newest first, that hold an artifact of what gc would remove or removed."""
    return [alias for (alias,) in database.query(home, LOSERS, [[row["artifact_id"] for row in found]])[1]]


def collect(home: Path, keep_runs: int) -> tuple[list[Collectable], int]:
    """Removes what `collectable` lists, under the same lock, and leases that nobody holds. Rebuilds the index if anything was removed.

    Raises the errors of `collectable`.

    Returns:
        The list of removed items and the bytes freed, counted as in the list.
    """
    _refuse_no_home(home)
    freed = 0
    with runs.hold_home(home, alone=True):
        finish_deletions(home)
        found = _listed(home, keep_runs)
        for row in found:
            name = row["artifact_id"]
            folder = home / name if name.startswith(SCRATCH) else home / "artifacts" / name
            if folder.is_symlink():  # the target of the link does not belong to the home
                folder.unlink()
            else:
                freed += row["bytes"]
                (folder / manifest.NAME).unlink(missing_ok=True)
                shutil.rmtree(folder)
            names.forget_names(home, name)
            integrity.forget(home, name)
        free = [path for path in (home / "leases").glob("*") if not lease.is_live(path)]
        for left in [*free, *(home / "names").glob(".*")]:
            left.unlink()  # left by killed processes, because nobody else works here now
        runs.remove_half_written(home)
        if found:
            database.reindex(home)
    return found, freed


def _listed(home: Path, keep_runs: int) -> list[Collectable]:
    """Returns what gc would remove. The caller holds the home alone.

    Raises:
        StageError: A record or manifest is damaged, so it is not known what it keeps.
    """
    names.all_names(home)  # raises StageError for a name that cannot be read
    if broken := runs.damaged(home, _fits):
        folder, problem = broken[0]
        raise StageError(
            f"A run's record is damaged, so what it keeps is not known: {problem}{_more(broken)}.",
            where=str(folder),
            do="Restore the file from a copy, or remove the folder; gc can then remove what only that run needed.",
        )
    database.update(home)
    if spoilt := database.query(home, "SELECT name, problem FROM damaged ORDER BY name")[1]:
        raise StageError(
            f"A manifest is damaged, so what it was made from is not known: {spoilt[0][1]}{_more(spoilt)}",
            where=str(home / "artifacts" / spoilt[0][0] / manifest.NAME),
            do="Restore the file from a copy, or remove its folder; the next run then builds the artifact again.",
        )
    keeping = [keep_runs, list(names.all_names(home).values())]
    rows: list[Collectable] = [
        {"artifact_id": artifact_id, "node": node, "bytes": size, "built_by": run_id}
        for artifact_id, node, size, run_id in database.query(home, NEEDED + OTHERS, keeping)[1]
        if not manifest.is_imported(manifest.read_artifact(home / "artifacts" / artifact_id))
    ]
    needed = {row[0] for row in database.query(home, NEEDED + "SELECT artifact_id FROM needed", keeping)[1]}
    for folder in sorted((home / "artifacts").glob("*/*")):
        name = f"{folder.parent.name}/{folder.name}"
        if manifest.FOLDER.fullmatch(folder.name) and name not in needed and folder.is_dir() and not (folder / manifest.NAME).exists():
            rows.append({"artifact_id": name, "node": folder.parent.name, "bytes": _size(folder), "built_by": ""})
    for folder in sorted((home / "scratch").glob("*")):
        held = lease_of_scratch(folder)
        if not lease.is_live(held):
            rows.append(
                {"artifact_id": SCRATCH + folder.name, "node": held.name.rpartition("-")[0], "bytes": _size(folder), "built_by": ""}
            )
    return rows


def _fits(record: runs.RunRecord) -> None:
    """Checks that a run's record has the fields and types that the index needs. Raises KeyError, TypeError or ValueError."""
    schema.check_types(schema.run_rows(record))


def _refuse_no_home(home: Path) -> None:
    """Refuses a folder that is not a home.

    Raises:
        RecipeError: The folder has no artifacts.
    """
    if not (home / "artifacts").is_dir():  # checked before the lock, which would create the folder
        raise RecipeError("This home has no artifacts.", where=str(home), do="Name another home with --home.")


def _size(folder: Path) -> int:
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file())


def _more(found: Sequence[object]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
