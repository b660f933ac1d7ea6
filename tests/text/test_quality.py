"""Our chain against datatrove's filters called one by one, on real pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.text.quality import SIGNALS, judge_text, make_judge, remember_words

DEFAULTS: dict[str, dict[str, object] | None] = {"gopher_repetition": {}, "gopher_quality": {}, "c4": {}, "fineweb": {}}
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
PROSE = """The old house of the baker was painted by the men that live near the river.
To be honest, nobody could have known how long the winter would last with so little wood.
Children of the village went to school on foot and came back with stories and snow.
A letter had been lying on the table since Monday, unread and covered with flour.
She asked whether that road might lead to the harbour where big ships are built.
In spring their garden was full of bees, and every window stood open until dark.
When the doctor arrived he brought apples, two newspapers and a very small dog.
It is said that bread from this oven can be kept for several weeks without harm."""


@pytest.fixture(scope="module")
def pages(corpora: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (corpora / "text" / "c4_demo.jsonl").read_text().splitlines()[:120]]


def datatrove_verdict(text: str) -> tuple[str, str]:
    """(reason, text) of datatrove's filters, each a fresh one, in the order of the chain."""
    from datatrove.data import Document
    from datatrove.pipeline.filters.c4_filters import C4QualityFilter
    from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter
    from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
    from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter

    document = Document(text=text, id="x")
    for name, rule in (
        ("gopher_repetition", GopherRepetitionFilter()), ("gopher_quality", GopherQualityFilter()), ("c4", C4QualityFilter()),
        ("fineweb", FineWebQualityFilter()),
    ):  # fmt: skip
        result = rule.filter(document)
        if result is not True:
            reason = result[1] if isinstance(result, tuple) else ""
            return f"{name}.{reason.removeprefix('gopher_')}", text
    return "", document.text


def test_words_are_spacys(pages: list[str]) -> None:
    from datatrove.utils.word_tokenizers import SpaCyTokenizer

    plain = SpaCyTokenizer("en")  # a tokenizer of its own, untouched by remember_words
    split = remember_words()
    odd = ["it's 10a.m. in the U.S.A., don't; e.g. x.y(z) -> 3.5%!", "IS_ALPHA is odd", "tab\tand\u00a0nbsp\u2028line", ""]
    for text in [*pages[:40], *odd]:
        assert split(text) == plain.word_tokenize(text)


def test_verdicts_are_datatroves(pages: list[str]) -> None:
    judge = make_judge(DEFAULTS, STOP_WORDS, edit_lines=True)
    verdicts = [judge_text(judge, text) for text in pages]
    assert [(v.reason, v.text) for v in verdicts] == [datatrove_verdict(text) for text in pages]
    assert 10 < sum(not v.reason for v in verdicts) < len(pages)
    assert all(set(v.signals) == set(SIGNALS) for v in verdicts)


def test_thresholds_reach_the_filters() -> None:
    assert judge_text(make_judge(DEFAULTS, STOP_WORDS, True), PROSE).reason == ""
    strict = {"gopher_quality": {"min_doc_words": 1000}}
    assert judge_text(make_judge(strict, STOP_WORDS, True), PROSE).reason == "gopher_quality.short_doc"
    assert judge_text(make_judge({}, STOP_WORDS, True), PROSE).reason == ""
    no_stop_words = {"gopher_quality": {}}
    assert judge_text(make_judge(no_stop_words, ("zebra",), True), PROSE).reason == "gopher_quality.enough_stop_words"


def test_c4_edits_lines_only_when_asked() -> None:
    text = PROSE + "\nno punctuation here at the end"
    changed = judge_text(make_judge({"c4": {}}, STOP_WORDS, True), text)
    assert (changed.reason, changed.text) == ("", PROSE)
    assert judge_text(make_judge({"c4": {}}, STOP_WORDS, False), text).text == text


def test_signals_of_a_small_text() -> None:
    signals = judge_text(make_judge({}, STOP_WORDS, False), "The cat sat.\n# Have 42\nThe cat sat.").signals
    assert signals["words"] == 8  # punctuation and the hash do not count
    assert signals["stop_words"] == 0  # Gopher's list is in lower case, and so is its rule
    assert signals["line_punct_frac"] == pytest.approx(2 / 3)
    assert signals["dup_line_chars_frac"] == pytest.approx(12 / 33)
    assert signals["short_lines_frac"] == 1.0


def test_text_without_words_is_dropped_before_the_rules() -> None:
    assert judge_text(make_judge(DEFAULTS, STOP_WORDS, True), " \n ").reason == "no_words"
