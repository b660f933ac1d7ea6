"""What train_tokenizer measures: the first texts of every source, a baseline beside it, and the section of the report."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from stages.record.contract.errors import StageError
from stages.tokens.train_tokenizer import vocabulary_report
from stages.tokens.train_tokenizer.stage import STAGE
from stages.tokens.train_tokenizer.vocabulary_report import REPORT, report_section, write_report
from tests.conftest import run_stage
from tests.made.trained_bpe import train_bpe
from tests.stages import made


def test_every_source_has_its_share_and_the_section_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_report, "MEASURED_BYTES", 200)
    docs = made.documents(tmp_path / "docs", [[("a", "the red fox " * 5)] * 9, [("a", "more"), ("b", "short text")]])
    files = sorted((docs.path / "documents").glob("*.parquet"))
    tokenizer = train_bpe(["the red fox"] * 5, 270)
    figures = write_report(tokenizer, files, docs.path / REPORT, None)
    groups = json.loads((docs.path / REPORT).read_text())["groups"]
    assert [(group["source"], group["lang"], group["bytes"]) for group in groups] == [("a", "en", 100), ("b", "en", 10)]
    assert figures["bytes_per_token"] == round(110 / sum(group["tokens"] for group in groups), 4)
    assert figures["tokens_per_word"] == round(sum(group["tokens"] for group in groups) / 27, 4)
    section = report_section(docs)
    assert section is not None and [row["source"] for row in section.tables[0].rows] == ["a", "b"]
    assert "1234567890 is 1 | 2 | 3" in section.paragraphs[1] and "Of 264 tokens" in section.paragraphs[1]


def test_a_baseline_stands_beside_it(tmp_path: Path) -> None:
    """Of words: 1 token each, so bytes per token are bytes per word. The tokenizer itself does not change."""
    docs = made.documents(tmp_path / "docs", [[("b", "the red fox " * 100), ("a", "the fox")] * 3])
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "words.json"))
    alone, beside = (
        run_stage(STAGE, {"vocab_size": 270, **more}, {"documents": docs}, tmp_path / name)
        for name, more in (("alone", {}), ("beside", {"baseline": [str(tmp_path / "words.json")]}))
    )
    assert alone.manifest["digest"] == beside.manifest["digest"] and alone.manifest["key"] != beside.manifest["key"]
    assert beside.summary["baseline_tokens_per_word"] == 1 and beside.summary["baseline_bytes_per_token"] == round(3621 / 906, 4)
    assert alone.summary.items() <= beside.summary.items() and "baseline" not in (alone.path / REPORT).read_text()
    section, without = report_section(beside), report_section(alone)
    assert section is not None and without is not None
    rows, before = section.tables[0].rows, without.tables[0].rows
    assert [(row["source"], row["bytes per token (baseline)"], row["tokens per word (baseline)"]) for row in rows] == [
        ("a", "3.500", "1.000"), ("b", "4.000", "1.000")
    ]  # fmt: skip
    assert [dict(list(row.items())[:5]) for row in rows] == [dict(row) for row in before]
    assert list(section.tables[0].numeric) == list(rows[0])[2:] and len(rows[0]) == 7
    named = sha256((tmp_path / "words.json").read_bytes()).hexdigest()
    assert f"The baseline is words.json of train_tokenizer.baseline (sha256 {named}), with 1 tokens." in section.paragraphs[0]
    measured = json.loads((beside.path / REPORT).read_text())["baseline"]
    assert (measured["file"], measured["sha256"]) == ("words.json", named)
    assert {"baseline_bytes_per_token", "baseline_tokens_per_word"} <= STAGE.summary.keys() & beside.summary.keys()
    assert "train_tokenizer.baseline" not in without.paragraphs[0]


def test_a_document_above_the_share_is_cut_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """é is two bytes, and the share ends in the middle of one. Catches: a whole document in the confined process, two cuts that differ."""
    monkeypatch.setattr(vocabulary_report, "MEASURED_BYTES", 1000)
    docs = made.documents(tmp_path / "docs", [[("a", "x" * 9 + "é " * 400_000), ("a", "more")]])
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split("é", "isolated")
    words.save(str(tmp_path / "words.json"))
    config = {"vocab_size": 262, "baseline": [str(tmp_path / "words.json")]}  # a token per byte
    found = json.loads((run_stage(STAGE, config, {"documents": docs}, tmp_path / "home").path / REPORT).read_text())
    assert [(group["bytes"], group["tokens"]) for group in found["groups"]] == [(999, 999)]
    assert found["baseline"]["tokens"] == [1 + 330 * 2]


def test_a_baseline_that_is_no_tokenizer_is_refused_before_the_words_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.tokens.train_tokenizer.word_tables.count_words", None)
    docs = made.documents(tmp_path / "docs", [["the red fox"]])
    (tmp_path / "no.json").write_text('{"version": "1.0"}')
    with pytest.raises(StageError, match="The baseline tokenizer cannot be compared: it cannot be read: ") as caught:
        run_stage(STAGE, {"vocab_size": 270, "baseline": [str(tmp_path / "no.json")]}, {"documents": docs}, tmp_path / "home")
    assert f"train_tokenizer.baseline: {tmp_path / 'no.json'}" in str(caught.value) and "Name the tokenizer.json" in str(caught.value)


def test_an_imported_tokenizer_has_no_section(tmp_path: Path) -> None:
    assert report_section(made.documents(tmp_path, [])) is None
