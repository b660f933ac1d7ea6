"""Questions to the index: runs, one artifact, what is upstream and downstream of it, why a node is a miss, is it intact.

Read-only but for `verify`, which reads every byte it is asked about. Each function returns plain rows (dicts).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.core import lineage, manifest
from stages.core.errors import StageError

WALK = """
WITH RECURSIVE reached(artifact_id, depth) AS (
  SELECT $1, 0
  UNION
  SELECT edge.{next}, reached.depth + 1 FROM reached JOIN edge ON edge.{here} = reached.artifact_id
)
SELECT min(depth) AS distance, node, artifact_id, kind, rows, tokens, bytes, left(digest, 12) AS digest
FROM reached JOIN artifact USING (artifact_id) WHERE artifact_id <> $1 GROUP BY ALL ORDER BY distance, node, artifact_id
"""


def run_rows(home: Path) -> list[dict[str, Any]]:
    """Every run, newest first, with its nodes counted by state."""
    return lineage.records(
        home,
        "SELECT run_id, recipe, state, strftime(started, '%Y-%m-%d %H:%M:%S') AS started, round(epoch(ended - started), 1) AS seconds, "
        "(SELECT count(*) FROM node_run n WHERE n.run_id = run.run_id AND n.state = 'cached') AS cached, "
        "(SELECT count(*) FROM node_run n WHERE n.run_id = run.run_id AND n.state NOT IN ('cached', 'failed')) AS built, "
        "(SELECT string_agg(node || ': ' || message, '; ') FROM node_run n WHERE n.run_id = run.run_id AND n.state = 'failed') AS failed "
        "FROM run ORDER BY run_id DESC",
    )


def show(home: Path, name: str) -> dict[str, Any]:
    """The manifest of an artifact (a run id shows the run and its nodes), without its list of files."""
    for record in lineage.records(home, "SELECT * FROM run WHERE run_id = ?", [name]):
        nodes = lineage.records(
            home, "SELECT node, state, artifact_id, seconds, message FROM node_run WHERE run_id = ? ORDER BY ordinal", [name]
        )
        return {k: json.loads(v) if k in ("command", "resolved", "hardware") else str(v) for k, v in record.items() if k != "packages"} | {
            "nodes": nodes
        }
    artifact = read(home, name)
    shown = {k: v for k, v in artifact.manifest.items() if k not in ("files", "key_parts", "version_notes")}
    return {"artifact": manifest.artifact_id(artifact), "path": str(artifact.path)} | shown | {"files": len(artifact.manifest["files"])}


def read(home: Path, name: str) -> Any:
    """The artifact that a name means (see lineage.latest_artifact)."""
    return manifest.read_artifact(home / lineage.latest_artifact(home, name)["path"])


def up(home: Path, name: str) -> list[dict[str, Any]]:
    """Everything an artifact was made from, nearest first."""
    return lineage.records(home, WALK.format(next="parent", here="child"), [lineage.latest_artifact(home, name)["artifact_id"]])


def down(home: Path, name: str) -> list[dict[str, Any]]:
    """Everything made from an artifact, nearest first."""
    return lineage.records(home, WALK.format(next="child", here="parent"), [lineage.latest_artifact(home, name)["artifact_id"]])


def verify(home: Path, name: str = "") -> tuple[int, list[str]]:
    """(files checked, what is wrong) for one artifact, for all those of a run, or for every artifact of the home."""
    if not name:
        artifacts = list(manifest.all_artifacts(home))
    else:
        ids = lineage.query(home, "SELECT DISTINCT artifact_id FROM node_run WHERE run_id = ? AND artifact_id <> ''", [name])[1]
        artifacts = [manifest.read_artifact(home / "artifacts" / row[0]) for row in ids] or [read(home, name)]
    wrong = [line for artifact in artifacts for line in manifest.verify(artifact)]
    return sum(len(a.manifest["files"]) for a in artifacts), wrong


def report_path(home: Path, run: str = "") -> Path:
    """The HTML report of a run (of the newest report without one)."""
    condition = "n.run_id = $1" if run else "$1 = ''"
    found = lineage.records(
        home,
        f"SELECT a.path FROM node_run n JOIN artifact a USING (artifact_id) WHERE n.node = 'report' AND {condition} ORDER BY n.ended DESC LIMIT 1",
        [run],
    )
    if not found:
        raise StageError(
            "There is no report" + (f" of run {run!r}." if run else " here yet."), where=str(home), do="`loam lineage runs` lists the runs."
        )
    return home / found[0]["path"] / "report.html"
