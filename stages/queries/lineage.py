"""Queries the index: runs, one artifact or run, upstream and downstream artifacts, given names, intact files, and reports.

Most functions return rows as plain dicts.
Guarantee: read-only, except that `give_name` writes a name.
Cost: `verify` reads every byte of the files that it checks. `show` and `read` read one manifest. All others read the index or names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stages.core.contract.errors import StageError, VerificationError
from stages.core.contract.states import BUILDS, NodeState
from stages.core.index import database, lookup
from stages.core.store import integrity, manifest, names, runs

FOUND = "node, artifact_id, alias, kind, rows, tokens, bytes"  # columns of `up` and `down`; each text column costs milliseconds


def run_rows(home: Path) -> list[dict[str, Any]]:
    """All runs, newest first, with their number of cached and built nodes and the messages of failed nodes."""
    return database.records(
        home,
        "SELECT run_id, alias, recipe, state, strftime(started, '%Y-%m-%d %H:%M:%S') AS started, round(epoch(ended - started), 1) AS seconds, "
        "(SELECT count(*) FROM node_run n WHERE n.run_id = run.run_id AND n.state = $1) AS cached, "
        "(SELECT count(*) FROM node_run n WHERE n.run_id = run.run_id AND list_contains($2::VARCHAR[], n.state)) AS built, "
        "(SELECT string_agg(node || ': ' || message, '; ') FROM node_run n WHERE n.run_id = run.run_id AND list_contains($3::VARCHAR[], n.state)) "
        "AS failed FROM run ORDER BY seq DESC, run_id",
        [str(NodeState.CACHED), [*map(str, BUILDS)], [str(NodeState.FAILED), str(NodeState.INTERRUPTED)]],
    )


def show(home: Path, name: str) -> dict[str, Any]:
    """The manifest of an artifact without its list of files, or a run with its nodes; both with the names that a user gave.

    Args:
        home: the home folder.
        name: a name as `lookup.latest_artifact` accepts it, or a run by id, alias or given name.

    Raises:
        StageError: there is no such artifact or run.
    """
    if run := lookup.find_run(home, name):
        record = database.records(home, "SELECT * EXCLUDE (packages) FROM run WHERE run_id = ?", [run])[0]
        nodes = database.records(
            home, "SELECT node, state, artifact_id, seconds, message FROM node_run WHERE run_id = ? ORDER BY ordinal", [run]
        )
        shown = {k: json.loads(v) if k in ("command", "resolved", "hardware") else str(v) for k, v in record.items()}
        return shown | {"names": names_of(home, run), "nodes": nodes}
    artifact = read(home, name)
    named = manifest.artifact_id(artifact)
    shown = {k: v for k, v in artifact.manifest.items() if k not in ("files", "key_parts", "version_notes", "alias")}
    first = {"artifact": named, "alias": artifact.manifest["alias"], "names": names_of(home, named), "path": str(artifact.path)}
    return first | shown | {"files": len(artifact.manifest["files"])}


def names_of(home: Path, target: str) -> list[str]:
    """The names that a user gave an artifact or a run. target: its id."""
    return [name for name, meant in names.all_names(home).items() if meant == target]


def name_rows(home: Path) -> list[dict[str, Any]]:
    """Rows (name, target, what) of all given names; what: artifact, run, or gone."""
    found = []
    for name, target in names.all_names(home).items():
        kind = (
            "artifact"
            if (home / "artifacts" / target / manifest.NAME).is_file()
            else "run"
            if (home / "runs" / target).is_dir()
            else "gone"
        )
        found.append({"name": name, "target": target, "what": kind})
    return found


def give_name(home: Path, target: str, name: str, move: bool = False) -> str:
    """Gives an artifact or a run a name and returns its id.

    Args:
        home: the home folder.
        target: an artifact or a run, by any name that `show` accepts.
        name: the new name.
        move: whether to take the name from its present target.

    Raises:
        RecipeError: the name is in use or not valid.
        StageError: the target is missing.
    """
    meant = lookup.find_run(home, target) or str(lookup.latest_artifact(home, target)["artifact_id"])
    with runs.hold_home(home):  # gc must not remove the target meanwhile
        names.give_name(home, name, meant, move)
        database.update(home)
    return meant


def read(home: Path, name: str) -> Any:
    """The artifact that a name means, as `lookup.latest_artifact` finds it. Raises StageError if there is none."""
    return manifest.read_artifact(home / lookup.latest_artifact(home, name)["path"])


def up(home: Path, name: str) -> list[dict[str, Any]]:
    """Rows of all artifacts that an artifact was made from, nearest first. Raises StageError if no artifact has the name."""
    return _walk(home, name, here="child", next="parent")


def down(home: Path, name: str) -> list[dict[str, Any]]:
    """Rows of all artifacts made from an artifact, nearest first. Raises StageError if no artifact has the name."""
    return _walk(home, name, here="parent", next="child")


def _walk(home: Path, name: str, here: str, next: str) -> list[dict[str, Any]]:
    """The artifacts reached from one, breadth first, with one query per distance.

    One recursive query would be slower, because it first builds a hash table of all links of the home.
    """
    first, wanted = lookup.latest_sql(home, name)
    columns = ["distance", *FOUND.split(", ")]

    def walk(ask: database.Ask) -> list[dict[str, Any]]:
        distance: dict[int, int] = {}
        reached = {number for (number,) in ask(first, [wanted])[1]}
        while reached:
            distance |= dict.fromkeys(reached, max(distance.values(), default=-1) + 1)
            linked = ask(f"SELECT {next} FROM link WHERE {here} IN ({_listed(reached)})")[1]
            reached = {number for (number,) in linked} - distance.keys()
        if not distance:
            return []
        rows = ask(f"SELECT number, {FOUND} FROM artifact WHERE number IN ({_listed(distance)})")[1]
        return [dict(zip(columns, (distance[number], *row), strict=True)) for number, *row in rows]

    found = sorted(database.asking(home, walk), key=lambda row: (row["distance"], row["node"], row["artifact_id"]))
    if not found:
        lookup.latest_artifact(home, name)  # raises with near matches
    return found[1:]


def _listed(numbers: Iterable[int]) -> str:
    """The numbers as constants for an IN of SQL. DuckDB looks up constants in a list, but executes a list parameter as a join."""
    return ", ".join(str(number) for number in sorted(numbers))


def verify(home: Path, name: str = "") -> tuple[int, list[str]]:
    """Compares files with their recorded sha256.

    Args:
        home: the home folder.
        name: an artifact, or a run for all its artifacts; empty for all artifacts of the home.

    Returns:
        The number of checked files, and one line per problem. Manifests that cannot be read are problems too; for a whole home, also
        run records and name files.

    Raises:
        StageError: there is no such artifact or run.
    """
    wrong: list[str] = []
    if not name:
        database.update(home)
        wanted = list(manifest.stamps(home))
        damaged = "SELECT name, problem FROM damaged WHERE name LIKE 'runs/%' OR name LIKE 'names/%'"
        wrong = [f"{home / row[0]}: {row[1]}" for row in database.query(home, damaged)[1]]
    elif run := lookup.find_run(home, name):
        wanted = [
            row[0]
            for row in database.query(home, "SELECT DISTINCT artifact_id FROM node_run WHERE run_id = ? AND artifact_id <> ''", [run])[1]
        ]
    elif (home / "artifacts" / name / manifest.NAME).is_file():  # the index has no artifact with a damaged manifest
        wanted = [name]
    else:
        wanted = [str(lookup.latest_artifact(home, name)["artifact_id"])]
    checked = 0
    for one in sorted(wanted):
        try:
            artifact = manifest.read_artifact(home / "artifacts" / one)
            wrong += integrity.check_anew(home, artifact)
            checked += len(artifact.manifest["files"])
        except FileNotFoundError:
            wrong.append(f"{home / 'artifacts' / one}: missing")
        except (VerificationError, KeyError, TypeError) as error:
            problem = error.what if isinstance(error, VerificationError) else f"The manifest is damaged: it has no {error}"
            wrong.append(f"{home / 'artifacts' / one / manifest.NAME}: {problem}")
    return checked, wrong


def report_path(home: Path, run: str = "") -> Path:
    """The path of the HTML report of a run.

    Args:
        home: the home folder.
        run: a run, by id, alias or given name; empty for the newest run that has a report.

    Raises:
        StageError: there is no such run or no report.
    """
    run_id = lookup.run_id_of(home, run) if run else ""
    found = database.query(
        home,
        "SELECT a.path FROM node_run n JOIN artifact a USING (artifact_id) JOIN run r ON r.run_id = n.run_id WHERE n.node = 'report' "
        "AND ($1 = '' OR n.run_id = $1) ORDER BY r.seq DESC, n.ordinal DESC LIMIT 1",
        [run_id],
    )[1]
    if not found:
        what = f"There is no report of run {run!r}." if run else "There is no report here yet."
        raise StageError(what, where=str(home), do="`loam lineage runs` lists the runs.")
    return home / str(found[0][0]) / "report.html"
