"""Takedown: which artifacts and checkpoints hold documents of matching URLs or copies of them, and what a rerun without them builds again.

Read-only. An artifact "holds" a document when its side tables name it, a crawl when what was read from it names it; a crawl of given
WARC files only "names the files" that hold it. It "holds a copy" when it holds none of the documents but what dedup found to be a copy of
one, exact or near, under another URL. A model is "made from" it when what it was trained on holds it.
Dedup compares one document of each text. What it found near to that one is near to every document of equal text, so those pairs count
for them too; where the texts that dedup read are no longer in this home, for every document that may be of equal text.
Cost: one scan over decisions, clusters, pairs, token spans and row spans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stages.core.contract.errors import StageError
from stages.core.index import database
from stages.core.tables.dedup_tables import DedupReason

# View, condition under which a row of it means that the artifact holds the document.
HOLDERS = (("decisions", "verdict <> 'dropped'"), ("token_spans", "true"), ("row_spans", "true"))
REMOVED = (DedupReason.URL_REMOVED, DedupReason.COPY_OF_REMOVED)  # reasons of what was taken out on request


@dataclass(frozen=True)
class Affected:
    """What a pattern meets.

    artifacts: node, artifact, relation (holds | holds a copy | names the files | made from), documents (held, None for what is made from
    them), copies (held likewise), steps (of pretraining that saw such a document or copy, None elsewhere).
    copies: relation (kept copy | dropped copy), url, host, of (the matching URL), kind (exact | near), jaccard, artifact (of dedup). A dropped
    copy of a document that stays would come back if only the document went.
    """

    artifacts: list[dict[str, Any]]
    copies: list[dict[str, Any]]


def affected(home: Path, pattern: str) -> Affected:
    """What holds documents whose URL matches. pattern: a URL, with % for any characters. Raises StageError when none does."""
    return database.asking(home, lambda ask: _affected(ask, home, pattern))


def as_like(pattern: str) -> str:
    """The pattern for LIKE … ESCAPE '\\': only % stands for others, as in filter.url.remove (stages/text/quality/rules.py)."""
    return re.sub(r"([\\_])", r"\\\1", pattern)


def _affected(ask: database.Ask, home: Path, pattern: str) -> Affected:
    views = {row[0] for row in ask("SELECT view_name FROM duckdb_views() WHERE NOT internal")[1]}
    like = as_like(pattern)
    if "decisions" not in views or not ask(f"SELECT 1 FROM decisions WHERE {_MATCH} LIMIT 1", [like])[1]:
        raise StageError(
            f"No recorded document has a URL like {pattern}.", where=str(home), do="Write % for any characters, as in https://host/%."
        )
    ask(f"CREATE TEMP TABLE matching AS SELECT DISTINCT doc_id FROM decisions WHERE {_MATCH} AND doc_id IS NOT NULL", [like])
    compared = {"clusters", "pairs"} <= views
    if compared:
        ask(_SAME_TEXT, [list(column) for column in zip(*_same_text(ask, views), strict=True)] or [[], [], []])
    ask(f"CREATE TEMP TABLE copied AS {_COPIES if compared else _NO_COPIES}")
    held, copies = _held(ask, views, "matching"), _held(ask, views, "copied")
    crawls: dict[str, int] = dict(ask(_CRAWLS.format(documents="matching"))[1])
    held |= crawls
    copies |= dict(ask(_CRAWLS.format(documents="copied"))[1])
    steps: dict[str, int] = dict(ask(_STEPS)[1]) if {"steps", "row_spans"} <= views else {}
    artifacts = [
        {
            "node": node,
            "artifact": artifact,
            "relation": _relation(home, artifact, held, copies, crawls),
            "documents": held.get(artifact),
            "copies": copies.get(artifact),
            "steps": steps.get(artifact),
        }
        for node, artifact in ask(_DOWNSTREAM, [[*held, *copies]])[1]
    ]
    named = [
        {
            "relation": "dropped copy" if dropped else "kept copy",
            "url": url,
            "host": urlsplit(url or "").netloc,
            "of": of,
            "kind": kind,
            "jaccard": jaccard,
            "artifact": artifact,
        }
        for _, artifact, url, of, kind, jaccard, dropped, reason in ask("FROM copied ORDER BY ALL")[1]
        if reason not in REMOVED
    ]
    return Affected(artifacts, named)


def _same_text(ask: database.Ask, views: set[str]) -> list[tuple[str, Any, Any]]:
    """(artifact of dedup, document, compared document) with equal text, where the second is near to a kept document that the cluster of
    the first does not name. One of those kept documents or the first document itself matches.

    A document of equal text has the compared one's cluster and Jaccard similarity in `clusters`; others may have them too, so texts decide.
    """
    from stages.text.match.minhash import text_hash

    found = ask(_MAYBE_SAME_TEXT)[1]
    texts: dict[tuple[str, Any], bytes] = {}
    if found and "documents" in views:
        artifacts, documents = {row[0] for row in found}, {document for row in found for document in row[1:]}
        for artifact, document, text in ask(_TEXTS, [sorted(artifacts), sorted(documents)])[1]:
            texts[artifact, document] = text_hash(text)
    unread = object()  # a text that is not here is taken for equal: a takedown names a page too many rather than one too few
    return [
        (artifact, document, compared)
        for artifact, document, compared in found
        if unread in (pair := [texts.get((artifact, one), unread) for one in (document, compared)]) or pair[0] == pair[1]
    ]


def _held(ask: database.Ask, views: set[str], documents: str) -> dict[str, int]:
    """artifact -> how many of the documents it holds. documents: a table of their doc_ids."""
    held: dict[str, int] = {}
    for view, condition in HOLDERS:
        if view in views:
            sql = f"SELECT artifact_id, count(DISTINCT doc_id) FROM {view} WHERE {condition} AND doc_id IN (SELECT doc_id FROM {documents}) GROUP BY ALL"
            held |= dict(ask(sql)[1])
    return held


def _relation(home: Path, artifact: str, held: Mapping[str, int], copies: Mapping[str, int], crawls: Mapping[str, int]) -> str:
    if artifact in crawls and not (home / "artifacts" / artifact / "warc").is_dir():
        return "names the files"
    return "holds" if artifact in held else "holds a copy" if artifact in copies else "made from"


_MATCH = r"url LIKE $1 ESCAPE '\'"
_CRAWLS = """
SELECT edge.parent, count(DISTINCT doc_id) FILTER (reason IS DISTINCT FROM 'not_a_page') FROM decisions JOIN edge ON edge.child = decisions.artifact_id
JOIN artifact ON artifact.artifact_id = edge.parent WHERE artifact.kind = 'warc' AND doc_id IN (SELECT doc_id FROM {documents}) GROUP BY ALL
"""
_STEPS = """
SELECT s.artifact_id, count(DISTINCT s.step) FROM steps s JOIN edge ON edge.child = s.artifact_id AND edge.role = 'mixture'
JOIN row_spans r ON r.artifact_id = edge.parent AND r.row = s.row AND r.part = 'train'
WHERE r.doc_id IN (SELECT doc_id FROM matching UNION SELECT doc_id FROM copied) GROUP BY ALL
"""
# Exact copies of a document that went as a near copy, and that document: members of one cluster with one Jaccard similarity.
_MAYBE_SAME_TEXT = """
SELECT DISTINCT exact.artifact_id, exact.doc_id, near.doc_id FROM clusters exact
JOIN clusters near ON near.artifact_id = exact.artifact_id AND near.cluster = exact.cluster AND near.jaccard = exact.jaccard
JOIN pairs ON pairs.artifact_id = near.artifact_id AND pairs.doc_id = near.doc_id AND pairs.kept_doc_id <> near.kept_doc_id
WHERE exact.kind = 'exact' AND near.kind = 'near'
  AND (exact.doc_id IN (FROM matching) OR pairs.kept_doc_id IN (FROM matching)) ORDER BY ALL
"""
_TEXTS = """
SELECT edge.child, documents.doc_id, documents.text FROM documents
JOIN edge ON edge.parent = documents.artifact_id AND edge.role = 'documents' AND edge.input
WHERE edge.child IN (SELECT unnest($1::VARCHAR[])) AND documents.doc_id IN (SELECT unnest($2::UUID[]))
"""
_SAME_TEXT = """
CREATE TEMP TABLE same_text AS
SELECT unnest($1::VARCHAR[]) AS artifact_id, unnest($2::UUID[]) AS doc_id, unnest($3::UUID[]) AS compared
"""
# Both ways: what stayed in the place of a matching document, and what went in favour of one.
_COPIES = """
WITH judged AS (SELECT artifact_id, doc_id, url, verdict, reason FROM decisions WHERE node = 'dedup'),
alike AS (
  SELECT artifact_id, doc_id, kept_doc_id, kind, jaccard, corpus FROM clusters WHERE kind IN ('exact', 'near')
  UNION ALL SELECT artifact_id, doc_id, kept_doc_id, 'near', jaccard, corpus FROM pairs
  UNION ALL SELECT pairs.artifact_id, same_text.doc_id, pairs.kept_doc_id, 'near', pairs.jaccard, pairs.corpus
  FROM pairs JOIN same_text ON same_text.artifact_id = pairs.artifact_id AND same_text.compared = pairs.doc_id
),
copy AS (
  SELECT coalesce(corpus, artifact_id) AS artifact_id, kept_doc_id AS doc_id, artifact_id AS of_artifact, doc_id AS of_doc, kind, jaccard
  FROM alike SEMI JOIN matching USING (doc_id)
  UNION ALL SELECT artifact_id, doc_id, coalesce(corpus, artifact_id), kept_doc_id, kind, jaccard
  FROM alike WHERE kept_doc_id IN (SELECT doc_id FROM matching)
)
SELECT copy.doc_id, copy.artifact_id, any_value(own.url) AS url, min(other.url) AS of, min(kind) AS kind, max(jaccard) AS jaccard,
  coalesce(bool_and(own.verdict = 'dropped'), false) AS dropped, any_value(own.reason) AS reason
FROM copy LEFT JOIN judged own ON own.artifact_id = copy.artifact_id AND own.doc_id = copy.doc_id
LEFT JOIN judged other ON other.artifact_id = of_artifact AND other.doc_id = of_doc
WHERE copy.doc_id NOT IN (FROM matching) GROUP BY ALL
"""
_NO_COPIES = (
    "SELECT NULL::UUID AS doc_id, NULL::VARCHAR AS artifact_id, NULL AS url, NULL AS of, NULL AS kind, 0 AS jaccard, false AS dropped, NULL AS reason "
    "WHERE false"
)
_DOWNSTREAM = """
WITH RECURSIVE reached(artifact_id) AS (
  SELECT unnest($1::VARCHAR[])
  UNION
  SELECT edge.child FROM reached JOIN edge ON edge.parent = reached.artifact_id
)
SELECT node, artifact_id FROM reached JOIN artifact USING (artifact_id) ORDER BY started, artifact_id
"""
