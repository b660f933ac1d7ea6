"""Languages, rules and their records; verdicts are checked against datatrove in tests/text/test_quality.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages import filter as filter_stage
from stages.core.errors import RecipeError, StageError
from stages.core.stage import Artifact
from stages.core.tables import read_rows, write_rows
from stages.filter import STAGE, FilterConfig, rule_settings
from tests.conftest import run_stage
from tests.stages.made import documents
from tests.text.test_quality import PROSE

BRIEF = "This page is much too brief to pass the rule that wants at least fifty words of running text, and ends here."


def decisions(artifact: Artifact) -> list[dict[str, Any]]:
    return list(read_rows(artifact.path / "decisions" / "00000.parquet"))


def in_languages(path: Path, languages: list[tuple[str, float]]) -> Artifact:
    """One document of good prose per (lang, lang_score)."""
    import pyarrow.parquet as pq

    made = documents(path, [[PROSE] * len(languages)])
    file = path / "documents" / "00000.parquet"
    rows = [{**row, "lang": lang, "lang_score": score} for row, (lang, score) in zip(read_rows(file), languages, strict=True)]
    write_rows(file, pq.read_schema(file), rows)
    return made


def test_first_reason_and_signals(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [[PROSE, BRIEF, PROSE + "\n{ code } is here.", (PROSE + "\n") * 3], [PROSE]])
    found = run_stage(STAGE, {"c4": {"edit_lines": False}}, {"documents": made}, tmp_path)
    rows = decisions(found)
    assert [(row["verdict"], row["reason"]) for row in rows] == [
        ("kept", None), ("dropped", "gopher_quality.short_doc"), ("dropped", "c4.curly_bracket"),
        ("dropped", "gopher_repetition.dup_line_frac"),
    ]  # fmt: skip
    assert rows[1]["words"] == 22
    assert rows[0]["words"] > 100
    assert found.manifest["books"]["kept"] == 2
    assert [row["text"] for row in read_rows(found.path / "documents" / "00001.parquet")] == [PROSE]


def test_removed_lines_make_a_changed_document(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [[PROSE + "\nno full stop at the end of this line"]])
    found = run_stage(STAGE, {}, {"documents": made}, tmp_path)
    assert [(row["verdict"], row["reason"]) for row in decisions(found)] == [("changed", "c4.lines_removed")]
    assert [row["text"] for row in read_rows(found.path / "documents" / "00000.parquet")] == [PROSE]
    assert found.manifest["books"]["chars_removed"] == len("\nno full stop at the end of this line")


def test_languages(tmp_path: Path) -> None:
    made = in_languages(tmp_path / "made", [("en", 0.9), ("de", 0.9), ("en", 0.3), ("fr", 0.7)])
    found = run_stage(STAGE, {"languages": ["en", "fr"]}, {"documents": made}, tmp_path)
    assert [row["reason"] for row in decisions(found)] == [None, "language", "language_score", None]
    every = run_stage(STAGE, {"languages": [], "min_lang_score": 0}, {"documents": made}, tmp_path)
    assert every.manifest["books"]["kept"] == 4


def test_rules_off_keep_everything_with_words(tmp_path: Path) -> None:
    off = {name: {"enabled": False} for name in ("gopher_repetition", "gopher_quality", "c4", "fineweb")}
    made = documents(tmp_path / "made", [["x", "{{ }}", "a a a a a"]])
    books = run_stage(STAGE, off, {"documents": made}, tmp_path).manifest["books"]
    assert (books["kept"], books["dropped"]) == (2, {"no_words": 1})


def test_workers_change_nothing(corpora: Path, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in (corpora / "text" / "c4_demo.jsonl").read_text().splitlines()[:60]]
    made = documents(tmp_path / "made", [texts[:20], texts[20:40], texts[40:]])
    one, two = (run_stage(STAGE, {}, {"documents": made}, tmp_path / str(n), runtime={"workers": n}) for n in (1, 2))
    assert one.manifest["digest"] == two.manifest["digest"]


def test_dropping_everything_is_an_error(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [[BRIEF, BRIEF.lower()]])
    with pytest.raises(StageError, match="The filter dropped every document") as caught:
        run_stage(STAGE, {}, {"documents": made}, tmp_path)
    assert caught.value.where == "gopher_quality.short_doc 2"


def test_misspelt_threshold_names_the_nearest(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [["x"]])
    with pytest.raises(RecipeError) as caught:
        run_stage(STAGE, {"fineweb": {"new_line_ration": 0.2}}, {"documents": made}, tmp_path)
    assert caught.value.do == "Did you mean 'new_line_ratio'?"


def test_defaults_are_datatroves() -> None:
    import inspect

    from datatrove.pipeline.filters.c4_filters import C4QualityFilter
    from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter
    from datatrove.pipeline.filters.gopher_quality_filter import STOP_WORDS, GopherQualityFilter
    from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter

    makers = {"gopher_repetition": GopherRepetitionFilter, "gopher_quality": GopherQualityFilter, "c4": C4QualityFilter,
              "fineweb": FineWebQualityFilter}  # fmt: skip
    settings = rule_settings(FilterConfig())
    for name, maker in makers.items():
        theirs = {k: p.default for k, p in inspect.signature(maker).parameters.items() if k not in ("exclusion_writer", "language")}
        ours = settings[name] or {}
        assert {k: theirs[k] for k in ours} == ours
        assert set(theirs) - set(ours) <= {"stop_words", "line_punct_exclude_zero", "stop_chars", "split_paragraph"}
    assert list(filter_stage.QualityRules().stop_words) == STOP_WORDS
