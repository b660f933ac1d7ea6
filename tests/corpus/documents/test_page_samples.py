"""Samples of pages for the report: which are drawn, and how their text is shown."""

from __future__ import annotations

import hashlib
from pathlib import Path
from uuid import UUID

from stages.corpus.documents.page_samples import SAMPLES, dropped_and_kept_pages, dropped_pages, with_texts
from stages.record.contract.declaration import Artifact
from stages.record.contract.report_section import PageSample
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
    return Artifact(folder, {"node": "dedup", "inputs": {}})  # type: ignore[typeddict-item]


def test_dropped_pages_are_drawn_by_hash_from_the_first_shard_with_their_reasons(tmp_path: Path) -> None:
    found = dropped_pages(artifact(tmp_path))
    assert found is not None and not found.tables
    expected = [doc_id.int for doc_id in BY_HASH if doc_id.int % 2][:SAMPLES]
    assert list(found.samples) == [PageSample("dedup", UUID(int=number), f"http://a/{number}", "short") for number in expected]


def test_kept_pages_show_their_beginning(tmp_path: Path) -> None:
    found = dropped_and_kept_pages(artifact(tmp_path))
    assert found is not None and len(found.samples) == 2 * SAMPLES
    expected = [doc_id.int for doc_id in BY_HASH if doc_id.int % 2 == 0][:SAMPLES]
    assert [sample.page for sample in found.samples[SAMPLES:]] == [f"http://a/{number}" for number in expected]
    sample = found.samples[SAMPLES]
    assert sample.text.startswith(f"page\n {expected[0]}\\x1b[31m word word ") and sample.text.endswith("word ") and sample.ruling == "kept"


def test_the_text_of_a_dropped_page_is_that_of_the_artifact_that_its_stage_read(tmp_path: Path) -> None:
    """Catches: a text of another artifact of the same node, an empty one where the page is, a record without a page as a sample."""
    judged, read = artifact(tmp_path / "dedup"), artifact(tmp_path / "filter")
    texts = [{"doc_id": doc_id, "text": f"text {doc_id.int} " + "x" * 9000} for doc_id in BY_HASH[::2]]
    write_rows(tmp_path / "filter" / "documents" / "00000.parquet", schema(doc_id="uuid", text="string"), texts)
    judged.manifest["inputs"] = {"documents": {"node": "filter", "digest": "d1"}}  # type: ignore[typeddict-item]
    read.manifest["digest"] = "d1"
    (found, other) = (dropped_pages(one) for one in (judged, read))
    assert found is not None and other is not None
    shown = with_texts(found.samples, {"dedup": judged, "filter": read})
    there = set(BY_HASH[::2])
    assert [bool(sample.text) for sample in shown] == [sample.doc_id in there for sample in found.samples] and len(set(shown)) == SAMPLES
    for sample in shown:
        assert not sample.text or (
            sample.text.startswith(f"text {sample.doc_id.int} xx") and sample.text.endswith("x …") and len(sample.text) == 602
        )
    read.manifest["digest"] = "d2"
    assert (
        with_texts(found.samples, {"dedup": judged, "filter": read}) == list(found.samples) == with_texts(found.samples, {"dedup": judged})
    )


def test_a_record_that_was_no_page_is_no_sample(tmp_path: Path) -> None:
    rows = [
        {"doc_id": doc_id, "url": "u", "verdict": "dropped", "reason": "not_a_page" if n else "http_status"}
        for n, doc_id in enumerate(PAGES)
    ]
    write_rows(tmp_path / "decisions" / "00000.parquet", schema(doc_id="uuid", url="string", verdict="string", reason="string"), rows)
    found = dropped_pages(Artifact(tmp_path, {"node": "extract"}))  # type: ignore[typeddict-item]
    assert found is not None and [sample.ruling for sample in found.samples] == ["http_status"]


def test_without_decisions_and_documents_there_is_no_section(tmp_path: Path) -> None:
    assert dropped_pages(Artifact(tmp_path, {"node": "filter"})) is None  # type: ignore[typeddict-item]
    assert dropped_and_kept_pages(Artifact(tmp_path, {"node": "dedup"})) is None  # type: ignore[typeddict-item]
