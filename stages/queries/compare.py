"""Compares two artifacts or two runs: key parts, record counts and results.

Guarantee: read-only; it reads manifests and the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.core.contract.errors import StageError
from stages.core.index import database, lookup
from stages.core.store import manifest
from stages.queries.lineage import read

Row = dict[str, Any]


def diff(home: Path, a: str, b: str) -> list[Row]:
    """Rows (what, a, b), one per difference of two artifacts; empty if key and content are equal.

    Args:
        home: the home folder.
        a: an artifact, by any name that `loam lineage show` accepts.
        b: the other artifact.

    Raises:
        StageError: an artifact is missing.
    """
    return _differences(read(home, a).manifest, read(home, b).manifest)


def compare_runs(home: Path, a: str, b: str) -> list[Row]:
    """Rows (node, what, a, b), one per difference of two runs. A node that only one run reached gives one row.

    Args:
        home: the home folder.
        a: a run, by id, alias ("tiny-7") or given name.
        b: the other run.

    Raises:
        StageError: a run is missing or has no nodes.
    """
    ours, theirs = _nodes(home, a), _nodes(home, b)
    rows: list[Row] = []
    for node in dict.fromkeys([*ours, *theirs]):
        left, right = ours.get(node), theirs.get(node)
        if left == right:
            continue
        if not left or not right:
            rows.append({"node": node, "what": "reached", "a": bool(left), "b": bool(right)})
            continue
        manifests = [_manifest(home, name) for name in (left, right)]
        if any(m is None for m in manifests):
            rows.append({"node": node, "what": "artifact", "a": left, "b": right})
            continue
        first, second = manifests
        assert first is not None and second is not None
        rows.extend({"node": node, **row} for row in _differences(first, second))
    return rows


def are_runs(home: Path, a: str, b: str) -> bool:
    """Whether two names mean runs (True) or not (False). Raises StageError if exactly one of them means a run."""
    runs = {name for name in (a, b) if lookup.find_run(home, name)}
    if len(runs) == 1 and a != b:
        (run,) = runs
        other = b if run == a else a
        raise StageError(
            f"{run!r} is a run, but {other!r} is none.",
            where=str(home),
            do="Name two runs (`loam lineage runs` lists them), or two checkpoints or models.",
        )
    return bool(runs)


def _nodes(home: Path, run: str) -> dict[str, str]:
    found = database.records(
        home, "SELECT node, artifact_id FROM node_run WHERE run_id = ? ORDER BY ordinal", [lookup.run_id_of(home, run)]
    )
    if not found:
        raise StageError(f"Run {run!r} has no nodes.", where=str(home), do="`loam lineage runs` lists the runs.")
    return {row["node"]: row["artifact_id"] for row in found}


def _manifest(home: Path, name: str) -> Mapping[str, Any] | None:
    """The manifest of an artifact; None if `gc` has removed the artifact."""
    folder = home / "artifacts" / name
    return manifest.read_artifact(folder).manifest if (folder / manifest.NAME).is_file() else None


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Row]:
    left, right = _flat(a), _flat(b)
    return [
        {"what": name, "a": left.get(name), "b": right.get(name)}
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The comparable values of a manifest by dotted name: key parts, sizes, record counts, summary, digest and code; no times."""
    chosen = {
        "": record["key_parts"],
        "rows": record["rows"],
        "tokens": record["tokens"],
        "record_counts": record["record_counts"],
        "summary": record["summary"],
        "digest": record["digest"][:12],
        "code": record["code"]["stage"][:12],
    }
    flat: dict[str, Any] = {}
    queue: list[tuple[str, Any]] = list(chosen.items())
    while queue:
        name, value = queue.pop(0)
        if isinstance(value, Mapping):
            queue[:0] = [(f"{name}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, str) and name.startswith("inputs."):
            flat[name] = value[:12]
        else:
            flat[name] = value
    return flat
