"""What a rule of extract or filter compared: the recorded value, the setting, and the threshold of the run that applied it.

Guarantee: values come from the `decisions` side table and thresholds from the config of the same artifact. Nothing is computed again, so
an artifact of older code is explained by what it recorded. A reason without a threshold gives no comparison, and a value that the stage
does not record is None. Pure functions; cost: microseconds per decision.
Source: stages/text/quality/rules.py has the rules of filter in the order in which they are applied, stages/extract.py those of extract.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.text.quality.pii import KINDS
from stages.text.quality.rules import matches

BELOW, ABOVE, AT_LEAST, NOT_ONE_OF, IS = "below", "above", "at least", "not one of", "with"
LINES, CHARS, PER_WORD = "share of lines", "share of characters", "per word"

# Reason -> (signal, relation of its value to the threshold, setting of filter, unit).
FILTER_RULES: Mapping[str, tuple[str, str, str, str]] = {
    "url.domain": ("url_listed", IS, "url.enabled", "list of URLs"),
    "url.subdomain": ("url_listed", IS, "url.enabled", "list of URLs"),
    "url.url": ("url_listed", IS, "url.enabled", "list of URLs"),
    "url.hard_blacklisted": ("url_listed", IS, "url.enabled", "list of URLs"),
    "url.soft_blacklisted": ("url_soft_words", AT_LEAST, "url.soft_words", "words of the soft list in the URL"),
    "url.blacklisted_subword": ("url_subword", IS, "url.enabled", "a listed part of a word is in the URL"),
    "language": ("lang", NOT_ONE_OF, "languages", "ISO 639-1 code"),
    "language_score": ("lang_score", BELOW, "min_lang_score", "score from 0 to 1"),
    "gopher_repetition.dup_para_frac": ("dup_para_frac", ABOVE, "gopher_repetition.dup_para_frac", "share of paragraphs"),
    "gopher_repetition.dup_para_char_frac": ("dup_para_char_frac", ABOVE, "gopher_repetition.dup_para_char_frac", CHARS),
    "gopher_repetition.dup_line_frac": ("dup_line_frac", ABOVE, "gopher_repetition.dup_line_frac", LINES),
    "gopher_repetition.dup_line_char_frac": ("dup_line_char_frac", ABOVE, "gopher_repetition.dup_line_char_frac", CHARS),
    "gopher_quality.short_doc": ("words", BELOW, "gopher_quality.min_doc_words", "words"),
    "gopher_quality.long_doc": ("words", ABOVE, "gopher_quality.max_doc_words", "words"),
    "gopher_quality.below_avg_threshold": ("avg_word_chars", BELOW, "gopher_quality.min_avg_word_length", "characters per word"),
    "gopher_quality.above_avg_threshold": ("avg_word_chars", ABOVE, "gopher_quality.max_avg_word_length", "characters per word"),
    "gopher_quality.too_many_hashes": ("hashes_per_word", ABOVE, "gopher_quality.max_symbol_word_ratio", PER_WORD),
    "gopher_quality.too_many_ellipsis": ("ellipses_per_word", ABOVE, "gopher_quality.max_symbol_word_ratio", PER_WORD),
    "gopher_quality.too_many_bullets": ("bullet_lines_frac", ABOVE, "gopher_quality.max_bullet_lines_ratio", LINES),
    "gopher_quality.too_many_end_ellipsis": ("ellipsis_lines_frac", ABOVE, "gopher_quality.max_ellipsis_lines_ratio", LINES),
    "gopher_quality.below_alpha_threshold": ("alpha_words_frac", BELOW, "gopher_quality.min_alpha_words_ratio", "share of words"),
    "gopher_quality.enough_stop_words": ("stop_words", BELOW, "gopher_quality.min_stop_words", "different stop words"),
    "c4.lorem_ipsum": ("c4_lorem_line", IS, "c4.filter_lorem_ipsum", "number of the line, from 0"),
    "c4.curly_bracket": ("c4_curly_line", IS, "c4.filter_curly_bracket", "number of the line, from 0"),
    "c4.too_few_sentences": ("c4_sentences", BELOW, "c4.min_num_sentences", "sentences after the line rules"),
    "c4.no_line_left": ("lines", IS, "c4.edit_lines", "lines after the line rules"),
    "fineweb.empty": ("lines", IS, "fineweb.enabled", "lines after the line rules"),
    "fineweb.line_punct_ratio": ("line_punct_frac", BELOW, "fineweb.line_punct_thr", LINES),
    "fineweb.short_line_ratio": ("short_lines_frac", ABOVE, "fineweb.short_line_thr", LINES),
    "fineweb.char_dup_ratio": ("dup_line_chars_frac", ABOVE, "fineweb.char_duplicates_ratio", CHARS),
    "fineweb.list_ratio": ("lines_per_word", ABOVE, "fineweb.new_line_ratio", "line breaks per word"),
    "quality.low_score": ("quality_score", BELOW, "quality.min_score", "probability of the positive label"),
    "no_words": ("words", "", "", "words"),
}
TOP_GRAM = re.compile(r"gopher_repetition\.top_(\d+)_gram")
DUP_GRAM = re.compile(r"gopher_repetition\.duplicated_(\d+)_n_grams")

# As above, for extract. A value that is no column of its decisions was not recorded.
EXTRACT_RULES: Mapping[str, tuple[tuple[str, str, str, str], ...]] = {
    "http-status": (("status", NOT_ONE_OF, "statuses", "HTTP status"),),
    "content-type": (("mime", NOT_ONE_OF, "mimes", "content type"),),
    "charset": (("undecodable_char_frac", ABOVE, "max_bad_char_frac", CHARS),),
    "no-text": (("text_chars", BELOW, "min_chars", "characters"),),
    "too-large": (("page_bytes", ABOVE, "max_page_bytes", "bytes"),),
    "bomb": (("page_bytes", ABOVE, "max_page_bytes", "bytes"), ("page_bytes_ratio", ABOVE, "max_ratio", "times the compressed size")),
}
EXTRACT_FACTS = {"ordinal": "record of the file, from 0", "status": "HTTP status", "mime": "content type", "encoding": "character encoding",
                 "chars_in": "characters, or bytes where the record was not decoded"}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A value of one document, and what it was compared with.

    Attributes:
        signal: column of the `decisions` side table, or the name of a value that the stage does not record.
        value: as recorded; None where it is not.
        relation: how the value stands to the threshold ("below"); empty for a value that no rule compares.
        setting: where the threshold is set ("filter.gopher_quality.min_doc_words"); empty where there is none.
        threshold: value of that setting in the config of the artifact.
        unit: unit of value and threshold.
    """

    signal: str
    value: Any
    relation: str = ""
    setting: str = ""
    threshold: Any = None
    unit: str = ""


def setting_of(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a config; None where it has none (a config of another version)."""
    found: Any = config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def filter_measured(row: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Measured]:
    """What filter compared for a document that it dropped or changed.

    Args:
        row: decision of the document with all signals.
        config: config of the filter artifact.
    """
    reason = str(row["reason"] or "")
    if row["verdict"] == "changed":
        yield from _edits(reason, row, config)
        return
    if reason == "url.removed":
        yield removed_url("filter.url.remove", row["url"], setting_of(config, "url.remove"))
        return
    if rule := _filter_rule(reason):
        yield _compared("filter", rule, row, config)


def extract_measured(row: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Measured]:
    """What extract compared for a record that it dropped, and what else it recorded of it.

    Args:
        row: decision of the record.
        config: config of the extract artifact.
    """
    rules = EXTRACT_RULES.get(str(row["reason"] or ""), ())
    yield from (_compared("extract", rule, row, config) for rule in rules)
    for name, unit in EXTRACT_FACTS.items():
        if row.get(name) not in (None, "") and name not in {signal for signal, *_ in rules}:
            yield Measured(name, row[name], unit=unit)


def removed_url(setting: str, url: str | None, patterns: Any) -> Measured:
    """The patterns of a takedown setting that match a URL; no pattern where the config has none."""
    listed = [str(pattern) for pattern in patterns] if isinstance(patterns, list) else []
    return Measured("url", url, "matches", setting, [pattern for pattern in listed if matches(url or "", [pattern])], "URL pattern")


def _filter_rule(reason: str) -> tuple[str, str, str, str] | None:
    """The entry of FILTER_RULES for a reason; of a rule on n-grams the one for its n."""
    if found := TOP_GRAM.fullmatch(reason):
        return f"top_{found[1]}_gram_frac", ABOVE, f"gopher_repetition.top_n_grams.{found[1]}", CHARS
    if found := DUP_GRAM.fullmatch(reason):
        return f"dup_{found[1]}_gram_frac", ABOVE, f"gopher_repetition.dup_n_grams.{found[1]}", CHARS
    return FILTER_RULES.get(reason)


def _compared(node: str, rule: tuple[str, str, str, str], row: Mapping[str, Any], config: Mapping[str, Any]) -> Measured:
    signal, relation, setting, unit = rule
    return Measured(
        signal, row.get(signal), relation, f"{node}.{setting}" if setting else "", setting_of(config, setting) if setting else None, unit
    )


def _edits(note: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Measured]:
    """What changed a kept document. note: names of the edits with "+" between them."""
    done = note.split("+")
    if "repaired" in done:
        yield _compared("filter", ("repaired", IS, "repair.enabled", "Unicode repair"), row, config)
    if "c4.lines_removed" in done:
        yield _compared("filter", ("c4_lines_removed", IS, "c4.edit_lines", "lines"), row, config)
    for kind in KINDS if "pii" in done else ():
        if row.get(f"pii_{kind}"):
            yield _compared("filter", (f"pii_{kind}", IS, f"pii.{kind}", "replacements"), row, config)
