"""Where a record went, and what a training step saw: URL -> captures -> verdicts -> token spans -> rows -> steps, and back.

Read-only; answered from the index and the Parquet side tables of the current artifacts. A step's rows come from the
`steps` side table of pretraining, which is written from the same stateless permutation that the trainer uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.core import lineage
from stages.core.errors import StageError

ROAD = ("extract", "filter", "dedup", "decontaminate")


def trace_url(home: Path, url: str) -> list[dict[str, Any]]:
    """Every capture of a URL: verdict and reason at each stage, its tokens, and the pretraining steps that saw it.

    A URL that ends in "%" is a prefix. Raises StageError when no capture is known.
    """
    of, seen = _current(home), []
    condition = "url LIKE ?" if url.endswith("%") else "url = ?"
    if judged := _judged(of):
        sql = f"SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(judged)} AND {condition} AND doc_id IS NOT NULL ORDER BY url, doc_id LIMIT 1000"
        seen = lineage.records(home, sql, [*judged, url])
    if not seen:
        raise StageError(
            f"No capture of {url} is recorded.", where=str(home), do="Give the URL as crawled; end it with % to match a prefix."
        )
    return [_document(home, of, str(row["doc_id"])) for row in seen]


def trace_doc(home: Path, doc_id: str) -> dict[str, Any]:
    """One document: its verdicts in road order, its token spans, and the rows and steps of pretraining that held it.

    Raises StageError when it is not recorded.
    """
    return _document(home, _current(home), doc_id)


def trace_step(home: Path, step: int) -> list[dict[str, Any]]:
    """The documents in one global batch of pretraining: row, doc_id, URL, source and tokens, in batch order.

    Raises StageError when nothing was trained, or not that step.
    """
    of = _current(home)
    judged, pretrain = _judged(of), of.get(("pretrain", "steps"), "")
    first, last = (
        lineage.query(home, "SELECT min(step), max(step) FROM steps WHERE contains(file, ?)", [pretrain])[1][0] if pretrain else (0, 0)
    )
    if first is None:
        raise StageError("Pretraining took no step here: its checkpoint was adopted.", where="pretrain", do="Look where it was trained.")
    if not pretrain or not judged or ("mix", "row_spans") not in of:
        raise StageError("No pretraining is recorded here.", where=str(home), do="Run a recipe up to pretrain first.")
    if not first <= step <= last:
        raise StageError(f"There is no step {step}.", where="pretrain", do=f"The steps are {first} to {last}.")
    return lineage.records(
        home,
        "SELECT s.position, s.row, r.piece, r.doc_id::VARCHAR AS doc_id, d.url, r.source, r.length AS tokens FROM steps s "
        "JOIN row_spans r ON r.row = s.row AND r.part = 'train' AND contains(r.file, ?) "
        f"LEFT JOIN (SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(judged)}) d ON d.doc_id = r.doc_id "
        "WHERE contains(s.file, ?) AND s.step = ? ORDER BY s.position, r.piece",
        [of["mix", "row_spans"], *judged, pretrain, step],
    )


Current = dict[tuple[str, str], str]  # (node, kind of side table) -> "/<node>/<folder>/" of its current artifact, where it has such


def _current(home: Path) -> Current:
    """The current artifacts as they stand in paths: `contains(file, …)` opens only their files."""
    sql = "SELECT DISTINCT current.node, kind, artifact_id FROM current JOIN side_table USING (artifact_id)"
    return {(node, kind): f"/{artifact}/" for node, kind, artifact in lineage.query(home, sql)[1]}


def _judged(of: Current) -> list[str]:
    """The current artifacts that judge documents; where one of them was adopted, the documents begin there."""
    return [of[node, "decisions"] for node in ROAD if (node, "decisions") in of]


def _any(paths: list[str]) -> str:
    """A condition on `file`, with a parameter per path."""
    return f"({' OR '.join(['contains(file, ?)'] * len(paths))})"


def _document(home: Path, of: Current, doc_id: str) -> dict[str, Any]:
    verdicts = []
    if judged := _judged(of):
        sql = f"SELECT node, url, verdict, reason FROM decisions WHERE {_any(judged)} AND doc_id = ?::UUID ORDER BY list_position(?, node)"
        verdicts = lineage.records(home, sql, [*judged, doc_id, list(ROAD)])
    if not verdicts:
        raise StageError(
            f"No document {doc_id} is recorded.", where=str(home), do="Take a doc_id from `loam trace --url` or the decisions view."
        )
    result: dict[str, Any] = {"doc_id": doc_id, "url": verdicts[0]["url"]}
    result["verdicts"] = [{"node": v["node"], "verdict": v["verdict"], "reason": v["reason"]} for v in verdicts]
    result["tokens"], result["rows"], result["steps"] = [], [], []
    if spans := of.get(("encode", "spans")):
        sql = "SELECT shard, start, length FROM token_spans WHERE contains(file, ?) AND doc_id = ?::UUID"
        result["tokens"] = lineage.records(home, sql, [spans, doc_id])
    if rows := of.get(("mix", "row_spans")):
        sql = "SELECT part, row, piece, length FROM row_spans WHERE contains(file, ?) AND doc_id = ?::UUID ORDER BY part, row, piece"
        result["rows"] = lineage.records(home, sql, [rows, doc_id])
    trained = [row["row"] for row in result["rows"] if row["part"] == "train"]
    if trained and (steps := of.get(("pretrain", "steps"))):
        sql = "SELECT DISTINCT step FROM steps WHERE contains(file, ?) AND list_contains(?, row) ORDER BY 1"
        result["steps"] = [step for (step,) in lineage.query(home, sql, [steps, trained])[1]]
    return result
