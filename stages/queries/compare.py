"""Compares two artifacts or two runs: key parts, record counts and results.

Guarantee: read-only; it reads manifests and the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import StageError
from stages.core.index import database, lookup
from stages.core.store import manifest
from stages.queries.lineage import read


class Difference(TypedDict):
    """A value that differs between two artifacts.

    Attributes:
        what: its dotted name in the manifest, for example "config.threshold".
        a: the value of the first artifact; None if it has none.
        b: the value of the second artifact; None if it has none.
    """

    what: str
    a: object
    b: object


class NodeDifference(Difference):
    """A difference between two runs. node: where they differ. what: also "reached" (bool) and "artifact" (ids)."""

    node: str


def diff(home: Path, a: str, b: str) -> list[Difference]:
    """Compares two artifacts. An unknown name is a StageError.

    Args:
        home: the home folder.
        a: an artifact, by any name that `loam lineage show` accepts.
        b: the other artifact.

    Returns:
        The differences; none if key and content are equal.
    """
    return _differences(read(home, a), read(home, b))


def compare_runs(home: Path, a: str, b: str) -> list[NodeDifference]:
    """Compares two runs. A run that is missing or has no nodes is a StageError.

    Args:
        home: the home folder.
        a: a run, by id, alias ("tiny-7") or given name.
        b: the other run.

    Returns:
        The differences, in the order of the nodes. A node that only one run reached gives one row.
    """
    ours, theirs = _nodes(home, a), _nodes(home, b)
    rows: list[NodeDifference] = []
    for node in dict.fromkeys([*ours, *theirs]):
        left, right = ours.get(node), theirs.get(node)
        if left == right:
            continue
        if not left or not right:
            rows.append({"node": node, "what": "reached", "a": bool(left), "b": bool(right)})
            continue
        first, second = _artifact(home, left), _artifact(home, right)
        if first is None or second is None:
            rows.append({"node": node, "what": "artifact", "a": left, "b": right})
            continue
        rows.extend({"node": node, **row} for row in _differences(first, second))
    return rows


def are_runs(home: Path, a: str, b: str) -> bool:
    """Finds whether two names mean runs.

    Args:
        home: the home folder.
        a: a name of a run or of an artifact.
        b: another one.

    Returns:
        True if both mean runs, False if none does.

    Raises:
        StageError: exactly one of them means a run.
    """
    runs = {name for name in (a, b) if lookup.find_run(home, name)}
    if len(runs) == 1 and a != b:
        (run,) = runs
        other = b if run == a else a
        raise StageError(
            f"{run!r} is a run, but {other!r} is not.",
            where=str(home),
            do="Name two runs (`loam lineage runs` lists them), or two checkpoints or models.",
        )
    return bool(runs)


def _nodes(home: Path, run: str) -> dict[str, str]:
    sql = "SELECT node, artifact_id FROM node_run WHERE run_id = ? ORDER BY ordinal"
    found: dict[str, str] = dict(database.query(home, sql, [lookup.run_id_of(home, run)])[1])
    if not found:
        raise StageError(f"Run {run!r} has no nodes.", where=str(home), do="`loam lineage runs` lists the runs.")
    return found


def _artifact(home: Path, name: str) -> Artifact | None:
    """Returns the artifact of an id; None if `gc` has removed it."""
    folder = home / "artifacts" / name
    return manifest.read_artifact(folder) if (folder / manifest.NAME).is_file() else None


def _differences(a: Artifact, b: Artifact) -> list[Difference]:
    left, right = dict(_values(a)), dict(_values(b))
    return [
        {"what": name, "a": left.get(name), "b": right.get(name)}
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def _values(artifact: Artifact) -> Iterator[tuple[str, object]]:
    """Yields the comparable values of a manifest by dotted name: key parts, sizes, record counts, summary, digest and code; no times."""
    record = artifact.manifest
    yield from _flattened("", record["key_parts"])
    for name in ("rows", "tokens", "record_counts", "summary"):
        yield from _flattened(name, record[name])
    yield "digest", record["digest"][:12]
    yield "code", record["code"]["stage"][:12]


def _flattened(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields the values in nested mappings by dotted name. Digests of inputs are shortened to 12 characters."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flattened(f"{name}.{key}".lstrip("."), inner)
    else:
        yield name, value[:12] if isinstance(value, str) and name.startswith("inputs.") else value
