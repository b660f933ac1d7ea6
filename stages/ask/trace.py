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
    exact = not url.endswith("%")
    condition = "url = $1" if exact else "url LIKE $1"
    seen = lineage.records(
        home,
        f"SELECT DISTINCT doc_id, url FROM decisions JOIN current USING (artifact_id) WHERE decisions.node = 'extract' AND {condition} "
        "AND doc_id IS NOT NULL ORDER BY url, doc_id LIMIT 1000",
        [url],
    )
    if not seen:
        raise StageError(
            f"No capture of {url} is recorded.", where=str(home), do="Give the URL as crawled; end it with % to match a prefix."
        )
    return [trace_doc(home, str(row["doc_id"])) for row in seen]


def trace_doc(home: Path, doc_id: str) -> dict[str, Any]:
    """One document: its verdicts in road order, its token spans, and the rows and steps of pretraining that held it."""
    verdicts = lineage.records(
        home,
        "SELECT decisions.node, url, verdict, reason FROM decisions JOIN current USING (artifact_id) WHERE doc_id = $1::UUID AND list_contains($2, decisions.node) "
        "ORDER BY list_position($2, decisions.node)",
        [doc_id, list(ROAD)],
    )
    if not verdicts:
        raise StageError(
            f"No document {doc_id} is recorded.", where=str(home), do="Take a doc_id from `loam trace --url` or the decisions view."
        )
    result: dict[str, Any] = {"doc_id": doc_id, "url": verdicts[0]["url"]}
    result["verdicts"] = [{"node": v["node"], "verdict": v["verdict"], "reason": v["reason"]} for v in verdicts]
    result["tokens"] = _if_there(
        home,
        "token_spans",
        "SELECT shard, start, length FROM token_spans JOIN current USING (artifact_id) WHERE doc_id = $1::UUID",
        [doc_id],
    )
    result["rows"] = _if_there(
        home,
        "row_spans",
        "SELECT part, row, piece, length FROM row_spans JOIN current USING (artifact_id) WHERE row_spans.node = 'mix' AND doc_id = $1::UUID ORDER BY part, row, piece",
        [doc_id],
    )
    result["steps"] = _if_there(
        home,
        "steps",
        "SELECT DISTINCT s.step FROM row_spans r JOIN steps s ON r.row = s.row AND s.node = 'pretrain' AND r.node = 'mix' "
        "JOIN current c ON c.artifact_id = s.artifact_id "
        "JOIN current d ON d.artifact_id = r.artifact_id WHERE r.part = 'train' AND r.doc_id = $1::UUID ORDER BY 1",
        [doc_id],
        single=True,
    )
    return result


def trace_step(home: Path, step: int) -> list[dict[str, Any]]:
    """The documents in one global batch of pretraining: row, doc_id, URL, source and tokens, in batch order."""
    if not _exists(home, "steps"):
        raise StageError("No pretraining is recorded here.", where=str(home), do="Run a recipe up to pretrain first.")
    rows = lineage.records(
        home,
        "SELECT s.position, s.row, r.piece, r.doc_id::VARCHAR AS doc_id, d.url, r.source, r.length AS tokens FROM steps s "
        "JOIN current cs ON cs.artifact_id = s.artifact_id JOIN row_spans r ON r.row = s.row AND r.part = 'train' AND r.node = 'mix' "
        "JOIN current cr ON cr.artifact_id = r.artifact_id LEFT JOIN (SELECT DISTINCT doc_id, url FROM decisions JOIN current USING (artifact_id) "
        "WHERE decisions.node = 'extract') d ON d.doc_id = r.doc_id WHERE s.node = 'pretrain' AND s.step = ? ORDER BY s.position, r.piece",
        [step],
    )
    if not rows:
        sql = "SELECT min(step), max(step) FROM steps JOIN current USING (artifact_id) WHERE steps.node = 'pretrain'"
        first, last = lineage.query(home, sql)[1][0]
        raise StageError(f"There is no step {step}.", where="pretrain", do=f"The steps are {first} to {last}.")
    return rows


def _exists(home: Path, view: str) -> bool:
    return bool(lineage.query(home, "SELECT 1 FROM duckdb_views() WHERE view_name = ? AND NOT internal", [view])[1])


def _if_there(home: Path, view: str, sql: str, parameters: list[Any], single: bool = False) -> list[Any]:
    """The rows of a query over a view that exists only once its stage has run."""
    if not _exists(home, view):
        return []
    rows = lineage.records(home, sql, parameters)
    return [next(iter(row.values())) for row in rows] if single else rows
