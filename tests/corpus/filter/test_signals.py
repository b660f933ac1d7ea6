"""Signals of small texts by hand, and the whole chain against datatrove's on made and real pages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stages.corpus.filter.filter_rule import applied, dtypes, first_reason
from stages.corpus.filter.rules import RULES
from stages.corpus.filter.signals import make_measure, text_signals
from stages.corpus.filter.stage import FilterConfig
from stages.corpus.filter.stored_signals import OF_TEXT
from tests.bench.bench_filter import datatrove_chain
from tests.bench.corpus import file_texts
from tests.made.rule_breakers import broken, judged, long_text
from tests.made.variants import Data

BASE: dict[str, Any] = {"url": {"enabled": False}, "languages": [], "min_lang_score": 0}
KNOWN = {"lang": "en", "lang_score": 1.0, "quality_score": None}


def settings(**given: Any) -> FilterConfig:  # type: ignore[valid-type]
    return FilterConfig.model_validate({**BASE, **given})


def verdicts(texts: list[str], config: FilterConfig) -> list[tuple[str, str]]:  # type: ignore[valid-type]
    measure, rules = make_measure(config), applied(RULES, config.model_dump(mode="json"))  # type: ignore[attr-defined]
    found = []
    for text in texts:
        signals, edited = text_signals(text, "en", measure)
        reason = first_reason({**signals, **KNOWN}, rules)
        found.append((reason, text if reason else edited))
    return found


@pytest.fixture(scope="module")
def pages(data: Data, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns pages of a crawl in many languages, and English texts: of the made ones, some break each rule."""
    crawled = file_texts(data.crawls()[3], tmp_path_factory.mktemp("crawl"))
    return random.Random(1).sample(crawled, data.expected(made=25, real=150)) + data.expected(made=judged, real=lambda: data.texts(100))()


def test_verdicts_and_texts_are_datatroves(pages: list[str], data: Data) -> None:
    judge = datatrove_chain()
    expected = [judge(text) for text in pages]
    assert verdicts(pages, settings()) == expected
    reasons = {reason for reason, _ in expected}
    assert reasons <= {"", *broken(0)}, "a text that breaks this rule is missing from tests/made/rule_breakers.py"
    assert reasons == {"", *broken(0)} if data.name == "made" else len(reasons) > 8
    assert 30 < sum(not reason for reason, _ in expected) < len(pages)
    assert sum(not reason and text != page for (reason, text), page in zip(expected, pages, strict=True)) > 5  # edited and kept


def test_each_made_text_breaks_its_rule() -> None:
    """So that the test above stays what it says when a text of rule_breakers.py is changed."""
    for number in range(3):
        assert [reason for reason, _ in verdicts(list(broken(number).values()), settings())] == list(broken(number))


OTHER = {
    "gopher_repetition": {"top_n_grams": {2: 0.05}, "dup_n_grams": {3: 0.2, 6: 0.05}, "dup_para_frac": None},
    "gopher_quality": {"min_doc_words": 20, "max_doc_words": 2000, "min_alpha_words_ratio": 0.5, "min_stop_words": 1, "stop_words": {"en": ["der", "the", "la"]}},
    "c4": {"filter_no_terminal_punct": False, "min_num_sentences": 3, "filter_curly_bracket": False, "min_words_per_line": 5,
           "max_word_length": 25},
    "fineweb": {"char_duplicates_ratio": 0.1, "short_line_length": 20, "line_punct_thr": 0.3},
}  # fmt: skip


def test_other_settings_are_datatroves_too(pages: list[str]) -> None:
    judge = datatrove_chain(OTHER)
    expected = [judge(text) for text in [*pages, long_text(0, 2500)]]
    assert verdicts([*pages, long_text(0, 2500)], settings(**OTHER)) == expected
    assert {"gopher_repetition.top_2_gram", "gopher_repetition.duplicated_3_n_grams", "gopher_quality.long_doc"} <= {r for r, _ in expected}


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
    assert set(signals) == set(dtypes(OF_TEXT, config.model_dump(mode="json"))) and edited == "The cat sat.\n# Have 42\nThe cat sat."  # type: ignore[attr-defined]
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
