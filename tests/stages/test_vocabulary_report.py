"""What train_tokenizer measures: the first texts of every source, and the section of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages import vocabulary_report
from stages.text.tokenizer.bpe_training import train_bpe
from stages.vocabulary_report import REPORT, report_section, write_report
from tests.stages import made


def test_every_source_has_its_share_and_the_section_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_report, "MEASURED_BYTES", 200)
    docs = made.documents(tmp_path / "docs", [[("a", "the red fox " * 5)] * 9, [("a", "more"), ("b", "short text")]])
    files = sorted((docs.path / "documents").glob("*.parquet"))
    tokenizer = train_bpe(["the red fox"] * 5, 270)
    figures = write_report(tokenizer, files, docs.path / REPORT)
    groups = json.loads((docs.path / REPORT).read_text())["groups"]
    assert [(group["source"], group["lang"], group["bytes"]) for group in groups] == [("a", "en", 120), ("b", "en", 10)]
    assert figures["bytes_per_token"] == round(130 / sum(group["tokens"] for group in groups), 4)
    assert figures["tokens_per_word"] == round(sum(group["tokens"] for group in groups) / 32, 4)
    section = report_section(docs)
    assert section is not None and [row["source"] for row in section.tables[0].rows] == ["a", "b"]
    assert "1234567890 is 1 | 2 | 3" in section.paragraphs[1] and "Of 264 tokens" in section.paragraphs[1]


def test_an_imported_tokenizer_has_no_section(tmp_path: Path) -> None:
    assert report_section(made.documents(tmp_path, [])) is None
