"""Reads what the dashboard shows from the index and its views: runs, nodes with their state, artifacts, loss and scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.core.contract.states import NodeState
from stages.core.index import database
from stages.queries.lineage import run_rows
from stages.text.web.chart import line_chart, thinned

STATE_CLASS = {
    NodeState.BUILT: "good",
    NodeState.CACHED: "good",
    NodeState.IMPORTED: "good",
    NodeState.IDENTICAL: "good",
    NodeState.DIFFERS: "wait",
    NodeState.FAILED: "bad",
    NodeState.INTERRUPTED: "bad",
}


def overview(home: Path, nodes: Sequence[str], run: str = "") -> dict[str, Any]:
    """All values of the page's template.

    Args:
        home: the home folder.
        nodes: the names of the nodes, in pipeline order.
        run: id or alias of the run to show; the newest run if it is empty or unknown.
    """
    runs = run_rows(home)
    chosen = next((r for r in runs if run in (r["run_id"], r["alias"])), runs[0] if runs else None)
    return {
        "home": str(home),
        "runs": runs[:30],
        "chosen": chosen,
        "nodes": _nodes(home, nodes, chosen["run_id"]) if chosen else [],
        "artifacts": _artifacts(home, chosen["run_id"]) if chosen else [],
        "charts": _charts(home, chosen["run_id"]) if chosen else [],
        "scores": _scores(home, chosen["run_id"]) if chosen else [],
    }


def _nodes(home: Path, nodes: Sequence[str], run: str) -> list[dict[str, Any]]:
    found = {
        r["node"]: r
        for r in database.records(home, "SELECT node, state, seconds, artifact_id, message FROM node_run WHERE run_id = ?", [run])
    }
    rows = []
    for node in nodes:
        row = found.get(node, {"state": NodeState.NOT_RUN, "seconds": None, "artifact_id": "", "message": ""})
        seconds = f"{row['seconds']:.1f}" if row["seconds"] is not None else ""
        rows.append(
            {
                "node": node,
                "state": row["state"],
                "class": STATE_CLASS.get(row["state"], "soft"),
                "seconds": seconds,
                "message": row["message"],
            }
        )
    return rows


def _artifacts(home: Path, run: str) -> list[dict[str, Any]]:
    rows = database.records(
        home,
        "SELECT a.artifact_id AS artifact, a.kind, a.rows, a.tokens, a.bytes, left(a.digest, 12) AS digest, a.run_id AS built_by "
        "FROM node_run n JOIN artifact a USING (artifact_id) WHERE n.run_id = ? ORDER BY n.ordinal",
        [run],
    )
    return [{k: f"{v:,}" if isinstance(v, int) else v for k, v in row.items()} for row in rows]


def _charts(home: Path, run: str) -> list[str]:
    """One SVG chart of loss by step per training node of the run."""
    trained = "SELECT DISTINCT artifact_id FROM node_run JOIN side_table USING (artifact_id) WHERE run_id = ? AND kind = 'metrics'"
    files = [f"/{row[0]}/" for row in database.query(home, trained, [run])[1]]
    if not files:
        return []
    theirs = " OR ".join(["contains(m.file, ?)"] * len(files))  # DuckDB decides this before it opens a file
    sql = (
        "SELECT m.node, m.step, m.loss, m.validation_loss FROM step_metrics m JOIN node_run n USING (artifact_id) "
        f"WHERE n.run_id = ? AND ({theirs}) ORDER BY n.ordinal, m.step"
    )
    by_node: dict[str, list[dict[str, Any]]] = {}
    for row in database.records(home, sql, [run, *files]):
        by_node.setdefault(row["node"], []).append(row)
    charts = []
    for node, rows in by_node.items():
        train = [(float(r["step"]), r["loss"]) for r in rows if r["loss"] is not None]
        validation = [(float(r["step"]), r["validation_loss"]) for r in rows if r["validation_loss"] is not None]
        charts.append(line_chart({"train": thinned(train), "validation": validation}, f"{node}: loss by step", "step", "loss"))
    return charts


def _scores(home: Path, run: str) -> list[dict[str, Any]]:
    """The summary metrics of the evaluations: one row per metric, one column per model."""
    rows = database.records(
        home,
        "SELECT m.node, m.name, m.value FROM metric m JOIN node_run n USING (artifact_id) "
        "WHERE n.run_id = ? AND starts_with(m.node, 'evaluate@') AND m.value IS NOT NULL ORDER BY m.name, n.ordinal",
        [run],
    )
    models = list(dict.fromkeys(r["node"].partition("@")[2] for r in rows))
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = table.setdefault(row["name"], {"metric": row["name"], **dict.fromkeys(models, "")})
        line[row["node"].partition("@")[2]] = f"{row['value']:.4g}"
    return list(table.values())
