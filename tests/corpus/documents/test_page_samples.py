"""Samples of pages for the report: which are drawn, and how their text is shown."""

from __future__ import annotations

import hashlib
from pathlib import Path
from uuid import UUID

from stages.corpus.documents.page_samples import SAMPLES, dropped_and_kept_pages, dropped_pages
from stages.record.contract.declaration import Artifact
from stages.record.tables.parquet import schema, write_rows

PAGES = [UUID(int=number) for number in range(1, 21)]
BY_HASH = sorted(PAGES, key=lambda doc_id: hashlib.sha256(doc_id.bytes).hexdigest())


def artifact(folder: Path) -> Artifact:
    """An artifact with twenty pages, of which every second was dropped; another shard has others."""
    shape = schema(doc_id="uuid", url="string", verdict="string", reason="string")
    rows = [
        {
            "doc_id": doc_id,
            "url": f"http://a/{doc_id.int}",
            "verdict": "dropped" if doc_id.int % 2 else "kept",
            "reason": "short" if doc_id.int % 2 else None,
        }
        for doc_id in PAGES
    ]
    write_rows(
        folder / "decisions" / "00000.parquet", shape, [*rows, {"doc_id": None, "url": None, "verdict": "dropped", "reason": "no_page"}]
    )
    write_rows(folder / "decisions" / "00001.parquet", shape, [{"doc_id": UUID(int=99), "url": "x", "verdict": "dropped", "reason": "y"}])
    texts = [
        {"doc_id": doc_id, "url": f"http://a/{doc_id.int}", "text": f"page\n\n {doc_id.int}\x1b[31m " + "word " * 99} for doc_id in PAGES
    ]
    write_rows(folder / "documents" / "00000.parquet", schema(doc_id="uuid", url="string", text="string"), texts[1::2])
    return Artifact(folder, {"node": "dedup"})  # type: ignore[typeddict-item]


def test_dropped_pages_are_drawn_by_hash_from_the_first_shard_with_their_reasons(tmp_path: Path) -> None:
    found = dropped_pages(artifact(tmp_path))
    assert found is not None and len(found.tables) == 1
    expected = [doc_id.int for doc_id in BY_HASH if doc_id.int % 2][:SAMPLES]
    assert list(found.tables[0].rows) == [{"node": "dedup", "page": f"http://a/{number}", "reason": "short"} for number in expected]


def test_kept_pages_show_their_beginning_in_one_line(tmp_path: Path) -> None:
    found = dropped_and_kept_pages(artifact(tmp_path))
    assert found is not None and len(found.tables) == 2
    expected = [doc_id.int for doc_id in BY_HASH if doc_id.int % 2 == 0][:SAMPLES]
    assert [row["page"] for row in found.tables[1].rows] == [f"http://a/{number}" for number in expected]
    text = found.tables[1].rows[0]["text"]
    assert text.startswith(f"page {expected[0]}\\x1b[31m word word ") and text.endswith(" …") and len(text) < 320


def test_without_decisions_and_documents_there_is_no_section(tmp_path: Path) -> None:
    assert dropped_pages(Artifact(tmp_path, {"node": "filter"})) is None  # type: ignore[typeddict-item]
    assert dropped_and_kept_pages(Artifact(tmp_path, {"node": "dedup"})) is None  # type: ignore[typeddict-item]
