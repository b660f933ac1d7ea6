"""Draws samples of dropped and kept pages for the report.

Guarantee: the samples follow from the artifact alone: those of the first shard whose doc_ids have the smallest sha256. Text is shown as one
line without characters that steer a terminal.
Cost: one pass over the decisions of one shard, and over its documents for kept pages.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from uuid import UUID

from stages.record.contract.declaration import Artifact
from stages.record.contract.printable import printable
from stages.record.contract.report_section import Section, SectionTable
from stages.record.tables.parquet import read_rows

HEADING = "Samples of pages"
SAMPLES = 5
SHOWN_CHARS = 300


def dropped_pages(artifact: Artifact) -> Section | None:
    """Returns some of the pages that a stage dropped, with their reasons; None if the artifact has no decisions, as an imported one."""
    shards = sorted((artifact.path / "decisions").glob("*.parquet"))
    if not shards:
        return None
    rows = read_rows(shards[0], ["doc_id", "url", "verdict", "reason"])
    drawn = _drawn((row["doc_id"], row["url"] or "", row["reason"] or "") for row in rows if row["verdict"] == "dropped" and row["doc_id"])
    table = tuple({"node": artifact.manifest["node"], "page": printable(url), "reason": reason} for _, url, reason in drawn)
    return (
        Section(HEADING, tables=(SectionTable(table, f"Dropped pages, {SAMPLES} per node, drawn by hash", folded=True),)) if table else None
    )


def dropped_and_kept_pages(artifact: Artifact) -> Section | None:
    """Returns what `dropped_pages` returns, and the beginnings of some documents; None if there is neither."""
    shards = sorted((artifact.path / "documents").glob("*.parquet"))
    dropped = dropped_pages(artifact)
    if not shards:
        return dropped
    names = {
        doc_id: url for doc_id, url, _ in _drawn((row["doc_id"], row["url"] or "", "") for row in read_rows(shards[0], ["doc_id", "url"]))
    }
    texts = {row["doc_id"]: _beginning(row["text"]) for row in read_rows(shards[0], ["doc_id", "text"]) if row["doc_id"] in names}
    rows = tuple({"page": printable(url), "text": texts[doc_id]} for doc_id, url in names.items())
    kept = (SectionTable(rows, f"Pages that {artifact.manifest['node']} kept, {SAMPLES} drawn by hash", folded=True),) if rows else ()
    tables = ((*dropped.tables,) if dropped else ()) + kept
    return Section(HEADING, tables=tables) if tables else None


def _drawn(pages: Iterable[tuple[UUID, str, str]]) -> list[tuple[UUID, str, str]]:
    """Returns the SAMPLES entries whose doc_ids have the smallest sha256."""
    return heapq.nsmallest(SAMPLES, pages, key=lambda page: hashlib.sha256(page[0].bytes).digest())


def _beginning(text: str) -> str:
    """Returns the first SHOWN_CHARS characters of a text, with its white space as single blanks."""
    words = " ".join(text[: 4 * SHOWN_CHARS].split())
    return printable(words[:SHOWN_CHARS]) + (" …" if len(words) > SHOWN_CHARS or len(text) > 4 * SHOWN_CHARS else "")
