"""Which documents web text rules keep: one order of rules, decided from stored signals alone.

Order: URLs to remove, url, language, gopher_repetition, gopher_quality, c4, fineweb, quality (the score of a classifier); the first rule that a document
breaks names the reason. The signals are those of stages/text/quality/signals.py, computed for every document, so that verdicts under other
thresholds need no second look at a text. FineWeb's signals are those of the text after C4's line edits, as in its own pipeline.
Guarantee: keep or drop, and the first reason, as datatrove's URLFilter, GopherRepetitionFilter, GopherQualityFilter, C4QualityFilter and
FineWebQualityFilter in this order at the same settings. Also as there: repeated n-grams are words joined without separators, and of
equally frequent n-grams the first seen counts. On purpose otherwise:
- min_alpha_words_ratio is datatrove's max_non_alpha_words_ratio, under the name that its TODO wishes;
- a threshold of 0 is a threshold (there it switches the rule off; here null does);
- a text without words is dropped as no_words, whatever rules are on (there some divide by zero, and symbols alone may pass);
- a text of which C4 leaves no line is dropped as c4.no_line_left where FineWeb's rules do not drop it (there it is kept, empty);
- a URL is looked up in the list of URLs without its scheme (the entries have none, so there none is ever found), and suffixes come from
  tldextract's own snapshot (there from the network, where it is up).
Cost: microseconds per document. Source: Rae et al. 2021 (Gopher, table A1 and section A.1.1); Raffel et al. 2020 (C4); Penedo et al. 2024
(FineWeb); datatrove 0.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

Signals = Mapping[str, Any]
Settings = Mapping[str, Any]
"""A filter section of a recipe, as plain values."""

DOCUMENT_RULES = frozenset({
    "languages", "min_lang_score", "url.remove", "url.soft_words", "gopher_repetition.enabled", "gopher_repetition.dup_line_frac",
    "gopher_repetition.dup_para_frac", "gopher_repetition.dup_line_char_frac", "gopher_repetition.dup_para_char_frac",
    "gopher_quality.enabled", "gopher_quality.min_doc_words", "gopher_quality.max_doc_words", "gopher_quality.min_avg_word_length",
    "gopher_quality.max_avg_word_length", "gopher_quality.max_symbol_word_ratio", "gopher_quality.max_bullet_lines_ratio",
    "gopher_quality.max_ellipsis_lines_ratio", "gopher_quality.min_alpha_words_ratio", "gopher_quality.min_stop_words",
    "c4.min_num_sentences", "c4.filter_lorem_ipsum", "c4.filter_curly_bracket", "fineweb.enabled", "fineweb.line_punct_thr",
    "fineweb.short_line_thr", "fineweb.char_duplicates_ratio", "fineweb.new_line_ratio", "quality.min_score",
})  # fmt: skip
"""Settings that stored signals are enough for. All others decide a text or a signal."""


def first_reason(signals: Signals, settings: Settings) -> str:
    """The first rule that a document breaks, such as "gopher_quality.short_doc"; "" when it is kept. signals: its `url` among them."""
    if settings["url"]["remove"] and matches(signals["url"] or "", settings["url"]["remove"]):
        return "url.removed"
    for name, rules in (
        ("url", url_rules), ("gopher_repetition", repetition_rules), ("gopher_quality", quality_rules), ("c4", c4_rules),
        ("fineweb", fineweb_rules),
    ):  # fmt: skip
        if settings[name]["enabled"]:
            reason = rules(signals, settings[name])
            if reason:
                return f"{name}.{reason}"
        if name == "url":
            reason = language_rules(signals, settings)
            if reason:
                return reason
    if settings["quality"]["min_score"] is not None and signals["quality_score"] < settings["quality"]["min_score"]:
        return "quality.low_score"
    if not signals["words"]:
        return "no_words"
    return "" if signals["lines"] else "c4.no_line_left"


def matches(url: str, patterns: Sequence[str]) -> bool:
    """Whether a URL is one of the patterns, in which % stands for any characters."""
    whole, parts = _patterns(tuple(patterns))
    return url in whole or (parts is not None and parts.fullmatch(url) is not None)


@lru_cache(maxsize=8)
def _patterns(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """(URLs without %, one expression for the others), made once per list."""
    parts = [".*".join(map(re.escape, pattern.split("%"))) for pattern in patterns if "%" in pattern]
    return frozenset(p for p in patterns if "%" not in p), re.compile("|".join(parts), re.DOTALL) if parts else None


def url_rules(signals: Signals, settings: Settings) -> str:
    """datatrove's URLFilter."""
    if signals["url_listed"]:
        return str(signals["url_listed"])
    if signals["url_soft_words"] >= settings["soft_words"]:
        return "soft_blacklisted"
    return "blacklisted_subword" if signals["url_subword"] else ""


def language_rules(signals: Signals, settings: Settings) -> str:
    """The languages wanted, and how sure it must be."""
    if settings["languages"] and signals["lang"] not in settings["languages"]:
        return "language"
    return "language_score" if signals["lang_score"] < settings["min_lang_score"] else ""


def repetition_rules(signals: Signals, settings: Settings) -> str:
    """Gopher's rules on repeated paragraphs, lines and word n-grams."""
    for name in ("dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac"):
        if settings[name] is not None and signals[name] > settings[name]:
            return name
    for n, threshold in sorted(settings["top_n_grams"].items(), key=lambda item: int(item[0])):
        if signals[f"top_{n}_gram_frac"] > threshold:
            return f"top_{n}_gram"
    for n, threshold in sorted(settings["dup_n_grams"].items(), key=lambda item: int(item[0])):
        if signals[f"dup_{n}_gram_frac"] > threshold:
            return f"duplicated_{n}_n_grams"
    return ""


def quality_rules(signals: Signals, settings: Settings) -> str:
    """Gopher's rules on words, symbols and lines."""
    for signal, least, most, too_little, too_much in (
        ("words", "min_doc_words", "max_doc_words", "short_doc", "long_doc"),
        ("avg_word_chars", "min_avg_word_length", "max_avg_word_length", "below_avg_threshold", "above_avg_threshold"),
        ("hashes_per_word", "", "max_symbol_word_ratio", "", "too_many_hashes"),
        ("ellipses_per_word", "", "max_symbol_word_ratio", "", "too_many_ellipsis"),
        ("bullet_lines_frac", "", "max_bullet_lines_ratio", "", "too_many_bullets"),
        ("ellipsis_lines_frac", "", "max_ellipsis_lines_ratio", "", "too_many_end_ellipsis"),
        ("alpha_words_frac", "min_alpha_words_ratio", "", "below_alpha_threshold", ""),
        ("stop_words", "min_stop_words", "", "enough_stop_words", ""),
    ):
        value = signals[signal]
        if value is None:  # no words to take a mean of
            continue
        if least and settings[least] is not None and value < settings[least]:
            return too_little
        if most and settings[most] is not None and value > settings[most]:
            return too_much
    return ""


def c4_rules(signals: Signals, settings: Settings) -> str:
    """C4's rules on documents: two phrases, of which the first to come counts, and sentences left by the line rules."""
    lorem = signals["c4_lorem_line"] if settings["filter_lorem_ipsum"] else None
    curly = signals["c4_curly_line"] if settings["filter_curly_bracket"] else None
    if lorem is not None and (curly is None or lorem <= curly):
        return "lorem_ipsum"
    if curly is not None:
        return "curly_bracket"
    return "too_few_sentences" if settings["min_num_sentences"] != -1 and signals["c4_sentences"] < settings["min_num_sentences"] else ""


def fineweb_rules(signals: Signals, settings: Settings) -> str:
    """FineWeb's rules on the shape of lines."""
    if not signals["lines"]:
        return "empty"
    if signals["line_punct_frac"] < settings["line_punct_thr"]:
        return "line_punct_ratio"
    if signals["short_lines_frac"] > settings["short_line_thr"]:
        return "short_line_ratio"
    if signals["dup_line_chars_frac"] > settings["char_duplicates_ratio"]:
        return "char_dup_ratio"
    return "list_ratio" if signals["lines_per_word"] > settings["new_line_ratio"] else ""


def needs_rerun(before: Settings, after: Settings) -> list[str]:
    """The changed settings that stored signals are not enough for: they change a text or a signal."""
    found = []
    for path, old, new in _changes(before, after):
        if path in DOCUMENT_RULES:
            continue
        if path in ("gopher_repetition.top_n_grams", "gopher_repetition.dup_n_grams") and set(new) <= set(old):
            continue
        if path == "c4.enabled" and not before["c4"]["edit_lines"]:
            continue
        found.append(path)
    return found


def _changes(before: Settings, after: Settings) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping) and not key.endswith("_n_grams"):
            yield from ((f"{key}.{path}", a, b) for path, a, b in _changes(old, new))
        elif key.endswith("_n_grams"):
            yield key, old, new
        else:
            yield key, old, new
