"""Takedown: which artifacts and checkpoints hold documents of matching URLs, and what a rerun without them would build again.

Read-only. An artifact "holds" a document when its side tables name it, a crawl when what was read from it names it; a crawl of given
WARC files only "names the files" that hold it. A model is "made from" it when what it was trained on holds it.
Cost: one scan over decisions, token spans and row spans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.core import lineage
from stages.core.errors import StageError

# View, condition under which a row of it means that the artifact holds the document.
HOLDERS = (("decisions", "verdict <> 'dropped'"), ("token_spans", "true"), ("row_spans", "true"))


def affected(home: Path, pattern: str) -> list[dict[str, Any]]:
    """One row per artifact: node, artifact, documents (held, None for what is made from them), relation (holds | names the files |
    made from), steps.

    pattern: a URL, with % for any characters. steps: of pretraining that saw such a document (None elsewhere).
    Raises StageError when no document matches.
    """
    views = {row[0] for row in lineage.query(home, "SELECT view_name FROM duckdb_views() WHERE NOT internal")[1]}
    like = as_like(pattern)
    if "decisions" not in views or not lineage.query(home, f"SELECT 1 FROM decisions WHERE {_MATCH} LIMIT 1", [like])[1]:
        raise StageError(
            f"No recorded document has a URL like {pattern}.", where=str(home), do="Write % for any characters, as in https://host/%."
        )
    matching = f"SELECT DISTINCT doc_id FROM decisions WHERE {_MATCH} AND doc_id IS NOT NULL"
    held: dict[str, int] = {}
    for view, condition in HOLDERS:
        if view in views:
            sql = f"SELECT artifact_id, count(DISTINCT doc_id) FROM {view} WHERE {condition} AND doc_id IN ({matching}) GROUP BY ALL"
            held |= dict(lineage.query(home, sql, [like])[1])
    crawls: dict[str, int] = dict(lineage.query(home, _CRAWLS.format(matching=matching), [like])[1])
    held |= crawls
    steps = dict(_steps(home, like, matching)) if {"steps", "row_spans"} <= views else {}
    everything = lineage.records(home, _DOWNSTREAM, [list(held)])
    return [
        {
            "node": row["node"],
            "artifact": row["artifact_id"],
            "relation": _relation(home, row["artifact_id"], held, crawls),
            "documents": held.get(row["artifact_id"]),
            "steps": steps.get(row["artifact_id"]),
        }
        for row in everything
    ]


def as_like(pattern: str) -> str:
    """The pattern for LIKE … ESCAPE '\\': only % stands for others, as in filter.url.remove (stages/text/quality.py)."""
    return re.sub(r"([\\_])", r"\\\1", pattern)


def _relation(home: Path, artifact: str, held: Mapping[str, int], crawls: Mapping[str, int]) -> str:
    if artifact in crawls and not (home / "artifacts" / artifact / "warc").is_dir():
        return "names the files"
    return "holds" if artifact in held else "made from"


def _steps(home: Path, like: str, matching: str) -> list[tuple[Any, ...]]:
    """(pretraining artifact, number of its steps that saw a matching document)."""
    sql = (
        "SELECT s.artifact_id, count(DISTINCT s.step) FROM steps s JOIN edge ON edge.child = s.artifact_id AND edge.role = 'mixture' "
        f"JOIN row_spans r ON r.artifact_id = edge.parent AND r.row = s.row AND r.part = 'train' WHERE r.doc_id IN ({matching}) GROUP BY ALL"
    )
    return lineage.query(home, sql, [like])[1]


_MATCH = r"url LIKE $1 ESCAPE '\'"
_CRAWLS = """
SELECT edge.parent, count(DISTINCT doc_id) FILTER (reason IS DISTINCT FROM 'not-a-page') FROM decisions JOIN edge ON edge.child = decisions.artifact_id
JOIN artifact ON artifact.artifact_id = edge.parent WHERE artifact.kind = 'warc' AND doc_id IN ({matching}) GROUP BY ALL
"""
_DOWNSTREAM = """
WITH RECURSIVE reached(artifact_id) AS (
  SELECT unnest($1::VARCHAR[])
  UNION
  SELECT edge.child FROM reached JOIN edge ON edge.parent = reached.artifact_id
)
SELECT node, artifact_id FROM reached JOIN artifact USING (artifact_id) ORDER BY started, artifact_id
"""
