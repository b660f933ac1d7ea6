"""Rules over signals: order, thresholds, what is other than in datatrove on purpose, and what needs a rerun."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.corpus.filter import filter_rule
from stages.corpus.filter.rules import DOCUMENT_RULES, RULES, needs_rerun
from stages.corpus.filter.stage import FilterConfig
from stages.corpus.text.url_patterns import matches
from stages.questions.affected import as_like

CONFIG = FilterConfig().model_dump(mode="json")
GOOD: dict[str, Any] = {
    "url_listed": None, "url_soft_words": 0, "url_subword": False, "lang": "en", "lang_score": 0.9, "dup_para_frac": 0.0,
    "dup_para_char_frac": 0.0, "dup_line_frac": 0.0, "dup_line_char_frac": 0.0, **{f"top_{n}_gram_frac": 0.0 for n in (2, 3, 4)},
    **{f"dup_{n}_gram_frac": 0.0 for n in range(5, 11)}, "words": 200, "all_words": 220, "avg_word_chars": 4.5, "hashes_per_word": 0.0,
    "ellipses_per_word": 0.0, "bullet_lines_frac": 0.0, "ellipsis_lines_frac": 0.0, "alpha_words_frac": 0.9, "stop_words": 5,
    "c4_sentences": 12, "c4_lorem_line": None, "c4_curly_line": None, "lines": 10, "line_punct_frac": 0.9, "short_lines_frac": 0.1,
    "dup_line_chars_frac": 0.0, "lines_per_word": 0.05, "quality_score": None,
}  # fmt: skip
BAD = [  # in the order of the rules
    ("url_listed", "domain", "url.domain"), ("url_soft_words", 2, "url.soft_blacklisted"), ("url_subword", True, "url.blacklisted_subword"),
    ("lang", "de", "language"), ("lang_score", 0.4, "language_score"), ("dup_para_frac", 0.31, "gopher_repetition.dup_para_frac"),
    ("dup_para_char_frac", 0.21, "gopher_repetition.dup_para_char_frac"), ("dup_line_frac", 0.31, "gopher_repetition.dup_line_frac"),
    ("dup_line_char_frac", 0.21, "gopher_repetition.dup_line_char_frac"), ("top_2_gram_frac", 0.21, "gopher_repetition.top_2_gram"),
    ("top_4_gram_frac", 0.17, "gopher_repetition.top_4_gram"), ("dup_5_gram_frac", 0.16, "gopher_repetition.duplicated_5_n_grams"),
    ("dup_10_gram_frac", 0.11, "gopher_repetition.duplicated_10_n_grams"), ("words", 49, "gopher_quality.short_doc"),
    ("avg_word_chars", 2.9, "gopher_quality.below_avg_threshold"), ("hashes_per_word", 0.11, "gopher_quality.too_many_hashes"),
    ("ellipses_per_word", 0.11, "gopher_quality.too_many_ellipsis"), ("bullet_lines_frac", 0.91, "gopher_quality.too_many_bullets"),
    ("ellipsis_lines_frac", 0.31, "gopher_quality.too_many_end_ellipsis"), ("alpha_words_frac", 0.79, "gopher_quality.below_alpha_threshold"),
    ("stop_words", 1, "gopher_quality.enough_stop_words"), ("c4_lorem_line", 3, "c4.lorem_ipsum"), ("c4_curly_line", 3, "c4.curly_bracket"),
    ("c4_sentences", 4, "c4.too_few_sentences"), ("lines", 0, "fineweb.empty"), ("line_punct_frac", 0.11, "fineweb.line_punct_ratio"),
    ("short_lines_frac", 0.68, "fineweb.short_line_ratio"), ("dup_line_chars_frac", 0.011, "fineweb.char_dup_ratio"),
    ("lines_per_word", 0.31, "fineweb.list_ratio"),
]  # fmt: skip


def first_reason(signals: dict[str, Any], settings: dict[str, Any]) -> str:
    return filter_rule.first_reason({"url": "http://x/"} | signals, filter_rule.applied(RULES, settings))


def with_(**sections: dict[str, Any]) -> dict[str, Any]:
    return CONFIG | {name: CONFIG[name] | given for name, given in sections.items()}


@given(st.lists(st.text("ab%_./\\", max_size=5), max_size=4), st.text("ab_./\\\n", max_size=6))
def test_a_pattern_is_that_of_sql(patterns: list[str], url: str) -> None:
    """Oracle: LIKE without its other wildcard, as `loam lineage affected` asks it."""
    asked = [as_like(pattern) for pattern in patterns]
    expected = any(duckdb.execute(r"SELECT $1 LIKE $2 ESCAPE '\'", [url, pattern]).fetchall()[0][0] for pattern in asked)
    assert matches(url, patterns) == expected


def test_each_rule_alone_names_its_reason() -> None:
    assert first_reason(GOOD, CONFIG) == ""
    for signal, value, reason in BAD:
        assert first_reason(GOOD | {signal: value}, CONFIG) == reason


def test_the_first_rule_of_the_order_names_the_reason() -> None:
    signals = dict(GOOD)
    for signal, value, reason in reversed(BAD):
        signals[signal] = value
        assert first_reason(signals, CONFIG) == reason


def test_of_lorem_ipsum_and_a_brace_the_first_line_counts() -> None:
    for lorem, curly, reason in ((2, 3, "c4.lorem_ipsum"), (3, 2, "c4.curly_bracket"), (2, 2, "c4.lorem_ipsum")):
        signals = GOOD | {"c4_lorem_line": lorem, "c4_curly_line": curly}
        assert first_reason(signals, CONFIG) == reason
    both = GOOD | {"c4_lorem_line": 2, "c4_curly_line": 3}
    assert first_reason(both, with_(c4={"filter_lorem_ipsum": False})) == "c4.curly_bracket"
    assert first_reason(both, with_(c4={"filter_lorem_ipsum": False, "filter_curly_bracket": False})) == ""


def test_null_leaves_a_rule_out_and_zero_is_a_threshold() -> None:
    assert first_reason(GOOD | {"hashes_per_word": 0.5}, with_(gopher_quality={"max_symbol_word_ratio": None})) == ""
    assert first_reason(GOOD | {"dup_line_frac": 0.01}, with_(gopher_repetition={"dup_line_frac": 0})) == "gopher_repetition.dup_line_frac"
    assert first_reason(GOOD | {"c4_sentences": 0}, with_(c4={"min_num_sentences": -1})) == ""


def test_texts_without_words_or_lines_never_pass() -> None:
    off = with_(**{name: {"enabled": False} for name in ("url", "gopher_repetition", "gopher_quality", "c4", "fineweb")})
    empty = GOOD | {"words": 0, "all_words": 2, "avg_word_chars": None, "alpha_words_frac": 0.0}
    assert first_reason(empty, off) == "no_words"
    assert (
        first_reason(empty, off | {"gopher_quality": CONFIG["gopher_quality"] | {"min_doc_words": None}})
        == "gopher_quality.below_alpha_threshold"
    )
    assert first_reason(GOOD | {"lines": 0}, off) == "c4.no_line_left"


def test_the_score_comes_last() -> None:
    scored = with_(quality={"min_score": 0.5})
    assert first_reason(GOOD | {"quality_score": 0.49}, scored) == "quality.low_score"
    assert first_reason(GOOD | {"quality_score": 0.49, "words": 3}, scored) == "gopher_quality.short_doc"
    assert first_reason(GOOD | {"quality_score": 0.5}, scored) == ""


@pytest.mark.parametrize(
    ("change", "needs"),
    [
        ({"gopher_quality": {"min_doc_words": 80}}, []),
        ({"gopher_quality": {"stop_words": {"de": ["der"]}}}, ["gopher_quality.stop_words.de"]),
        ({"gopher_repetition": {"dup_n_grams": {"5": 0.5, "6": 0.4}}}, []),
        ({"gopher_repetition": {"dup_n_grams": {"12": 0.5}}}, ["gopher_repetition.dup_n_grams"]),
        ({"c4": {"enabled": False}}, ["c4.enabled"]),
        ({"c4": {"min_num_sentences": 3, "remove_citations": False}}, ["c4.remove_citations"]),
        ({"fineweb": {"short_line_length": 20}, "url": {"enabled": False}}, ["fineweb.short_line_length", "url.enabled"]),
        ({"pii": {"emails": False}}, ["pii.emails"]),
    ],
)
def test_what_needs_a_rerun(change: dict[str, Any], needs: list[str]) -> None:
    assert needs_rerun(CONFIG, with_(**change)) == needs


def test_c4_as_a_verdict_only_needs_no_rerun() -> None:
    before = with_(c4={"edit_lines": False})
    assert needs_rerun(before, before | {"c4": before["c4"] | {"enabled": False}}) == []
    assert needs_rerun(CONFIG, CONFIG | {"languages": ["de"], "words": "de"}) == ["words"]


def test_every_document_rule_is_a_setting() -> None:
    for path in DOCUMENT_RULES:
        here: Any = CONFIG
        for name in path.split("."):
            here = here[name]
