"""Signals of small texts by hand, and the whole chain against datatrove's on real pages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stages.filter import FilterConfig
from stages.text.quality.filter_rule import applied, dtypes, first_reason
from stages.text.quality.rules import RULES
from stages.text.quality.signals import make_measure, text_signals
from stages.text.quality.stored_signals import OF_TEXT
from tests.bench.bench_filter import datatrove_chain
from tests.bench.corpus import file_texts

BASE: dict[str, Any] = {"url": {"enabled": False}, "languages": [], "min_lang_score": 0}
KNOWN = {"lang": "en", "lang_score": 1.0, "quality_score": None}


def settings(**given: Any) -> dict[str, Any]:
    return FilterConfig.model_validate({**BASE, **given}).model_dump(mode="json")


def verdicts(texts: list[str], config: dict[str, Any]) -> list[tuple[str, str]]:
    measure, rules = make_measure(config), applied(RULES, config)
    found = []
    for text in texts:
        signals, edited = text_signals(text, "en", measure)
        reason = first_reason({**signals, **KNOWN}, rules)
        found.append((reason, text if reason else edited))
    return found


@pytest.fixture(scope="module")
def pages(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Pages of a real crawl in many languages, and of C4."""
    crawled = file_texts(corpora / "crawl" / "CRAWL-2026-00003.warc.gz", tmp_path_factory.mktemp("crawl"))
    c4 = [json.loads(line)["text"] for line in (corpora / "text" / "c4_demo.jsonl").read_text().splitlines()]
    return random.Random(1).sample(crawled, 150) + c4[:100]


def test_verdicts_and_texts_are_datatroves(pages: list[str]) -> None:
    judge = datatrove_chain()
    expected = [judge(text) for text in pages]
    assert verdicts(pages, settings()) == expected
    assert len({reason for reason, _ in expected}) > 8 and 30 < sum(not reason for reason, _ in expected) < len(pages)


OTHER = {
    "gopher_repetition": {"top_n_grams": {2: 0.05}, "dup_n_grams": {3: 0.2, 6: 0.05}, "dup_para_frac": None},
    "gopher_quality": {"min_doc_words": 20, "min_alpha_words_ratio": 0.5, "min_stop_words": 1, "stop_words": {"en": ["der", "the", "la"]}},
    "c4": {"filter_no_terminal_punct": False, "min_num_sentences": 3, "filter_curly_bracket": False, "min_words_per_line": 5,
           "max_word_length": 25},
    "fineweb": {"char_duplicates_ratio": 0.1, "short_line_length": 20, "line_punct_thr": 0.3},
}  # fmt: skip


def test_other_settings_are_datatroves_too(pages: list[str]) -> None:
    assert verdicts(pages, settings(**OTHER)) == [datatrove_chain(OTHER)(text) for text in pages]


def test_odd_texts_are_datatroves() -> None:
    prose = "The old house of the baker was painted by men that have lived with him to be near the river. "
    lines = "\n".join(f"{prose}Line number {i} says something of its own, you see." for i in range(6))
    odd = [
        lines, lines + "\nLorem ipsum is not Latin.\n{ a brace }.", lines + "\n{ a brace }.\nLorem ipsum is not Latin.",
        lines + "\nPlease use java[1]script here now.", lines + "\nThis site uses cookies, you know.", lines + "\n- a\n• b\n" * 3,
        lines.replace("\n", "\n\n\n") + "\n" + "x" * 1200 + " is a very long word.", lines + " [12] [edit].\u2028Second part of a line here.",
        lines + "\n\tTabs  and   blanks.  Two sentences [1]  .", lines * 2, "word " * 80, "#tag the be " * 60, ("the of and... " * 30 + "\n") * 3,
        "a", "...", "The.",
    ]  # fmt: skip
    assert verdicts(odd, settings()) == [datatrove_chain()(text) for text in odd]


def test_signals_of_a_small_text() -> None:
    config = settings(c4={"edit_lines": False})
    signals, edited = text_signals("The cat sat.\n# Have 42\nThe cat sat.", "en", make_measure(config))
    assert set(signals) == set(dtypes(OF_TEXT, config)) and edited == "The cat sat.\n# Have 42\nThe cat sat."
    assert (signals["words"], signals["all_words"], signals["stop_words"]) == (8, 11, 0)  # the list is in lower case, and so is the rule
    assert signals["line_punct_frac"] == pytest.approx(2 / 3) and signals["short_lines_frac"] == 1.0
    assert signals["dup_line_chars_frac"] == pytest.approx(12 / 33) and signals["lines_per_word"] == pytest.approx(2 / 11)
    assert signals["c4_lines_removed"] == 1 and signals["c4_sentences"] == 2 and signals["c4_curly_line"] is None
    assert signals["hashes_per_word"] == pytest.approx(1 / 11) and signals["chars"] == 35


def test_c4_edits_lines_only_when_asked() -> None:
    text = "This line ends well.\nthis one does not"
    for edit_lines, expected in ((True, "This line ends well."), (False, text)):
        assert text_signals(text, "en", make_measure(settings(c4={"edit_lines": edit_lines})))[1] == expected
    assert text_signals(text, "en", make_measure(settings(c4={"enabled": False})))[1] == text


def test_the_empty_text() -> None:
    signals, edited = text_signals("", "en", make_measure(settings()))
    assert edited == "" and signals["words"] == signals["lines"] == 0 and signals["avg_word_chars"] is None
