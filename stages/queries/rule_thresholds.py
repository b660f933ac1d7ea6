"""Explains what a rule of extract or filter compared: the recorded value, the setting, and the threshold that was applied.

Guarantee: pure functions. Values come from the `decisions` side table, thresholds from the config of the same artifact. No value is
computed again, so an artifact of older code is explained by what it recorded. A reason without a threshold gives no comparison. A value
that the stage does not record is None.
Cost: microseconds per decision.
Source: stages/text/quality/rules.py has the rules of filter in the order of their application; stages/extract.py has those of extract.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stages.text.quality.filter_rule import above, at_least, below, equals, outside, present
from stages.text.quality.pii import KINDS
from stages.text.quality.rules import REMOVED, RULES
from stages.text.quality.url_patterns import matches
from stages.text.warc.page_reasons import PageReason

BELOW, ABOVE, AT_LEAST, NOT_ONE_OF, IS = "below", "above", "at least", "not one of", "with"
CHARS = "share of characters"
RELATIONS: Mapping[Any, str] = {below: BELOW, above: ABOVE, at_least: AT_LEAST, outside: NOT_ONE_OF, equals: IS, present: IS}
SWITCHES = {"c4.no_line_left": "c4.edit_lines"}
"""Reason -> the setting that switches its rule on, for rules that `enabled` of their section does not switch."""

# Reason -> (signal, relation of its value to the threshold, setting of extract, unit).
# A signal that is not a column of the decisions of extract has no recorded value.
EXTRACT_RULES: Mapping[str, tuple[tuple[str, str, str, str], ...]] = {
    PageReason.HTTP_STATUS: (("status", NOT_ONE_OF, "statuses", "HTTP status"),),
    PageReason.CONTENT_TYPE: (("mime", NOT_ONE_OF, "mimes", "content type"),),
    PageReason.CHARSET: (("undecodable_char_frac", ABOVE, "max_bad_char_frac", CHARS),),
    PageReason.NO_TEXT: (("text_chars", BELOW, "min_chars", "characters"),),
    PageReason.TOO_LARGE: (("page_bytes", ABOVE, "max_page_bytes", "bytes"),),
    PageReason.BOMB: (
        ("page_bytes", ABOVE, "max_page_bytes", "bytes"),
        ("page_bytes_ratio", ABOVE, "max_ratio", "times the compressed size"),
    ),
}
EXTRACT_FACTS = {"ordinal": "record of the file, from 0", "status": "HTTP status", "mime": "content type", "encoding": "character encoding",
                 "chars_in": "characters, or bytes where the record was not decoded"}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A value of one document, and the threshold that it was compared with.

    Attributes:
        signal: column of the `decisions` side table, or the name of a value that the stage does not record.
        value: the recorded value; None if it was not recorded.
        relation: the relation of the value to the threshold ("below"); empty for a value that no rule compares.
        setting: the setting of the threshold ("filter.gopher_quality.min_doc_words"); empty if there is none.
        threshold: the value of that setting in the config of the artifact.
        unit: the unit of value and threshold.
    """

    signal: str
    value: Any
    relation: str = ""
    setting: str = ""
    threshold: Any = None
    unit: str = ""


def setting_of(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a config; None if the config does not have it (a config of another version)."""
    found: Any = config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def filter_measured(row: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Measured]:
    """Yields what filter compared for a document that it dropped or changed.

    Args:
        row: the decision about the document, with all signals.
        config: the config of the filter artifact.
    """
    reason = str(row["reason"] or "")
    if row["verdict"] == "changed":
        yield from _edits(reason, row, config)
        return
    if reason == REMOVED:
        yield removed_url("filter.url.remove", row["url"], setting_of(config, "url.remove"))
        return
    if rule := _filter_rule(reason):
        yield _compared("filter", rule, row, config)


def extract_measured(row: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Measured]:
    """Yields what extract compared for a record that it dropped, then the other recorded facts (`EXTRACT_FACTS`).

    Args:
        row: the decision about the record.
        config: the config of the extract artifact.
    """
    rules = EXTRACT_RULES.get(str(row["reason"] or ""), ())
    yield from (_compared("extract", rule, row, config) for rule in rules)
    for name, unit in EXTRACT_FACTS.items():
        if row.get(name) not in (None, "") and name not in {signal for signal, *_ in rules}:
            yield Measured(name, row[name], unit=unit)


def removed_url(setting: str, url: str | None, patterns: Any) -> Measured:
    """The patterns of a takedown setting that match a URL; an empty list if the config has no such setting."""
    listed = [str(pattern) for pattern in patterns] if isinstance(patterns, list) else []
    return Measured("url", url, "matches", setting, [pattern for pattern in listed if matches(url or "", [pattern])], "URL pattern")


def _filter_rule(reason: str) -> tuple[str, str, str, str] | None:
    """(signal, relation, setting of filter, unit) of the rule that gives a reason. For a rule about n-grams, n comes from the reason."""
    for rule in RULES:
        pattern = re.escape(rule.full_reason).replace(re.escape("{n}"), r"(\d+)")
        if found := re.fullmatch(pattern, reason):
            n = found[1] if rule.signal.per else ""
            switch = "" if rule.always or not rule.section else f"{rule.section}.enabled"
            setting = rule.setting or SWITCHES.get(reason, switch)
            relation = RELATIONS[rule.breaks] if setting else ""
            return rule.signal.name.format(n=n), relation, f"{setting}.{n}" if n else setting, rule.signal.unit
    return None


def _compared(node: str, rule: tuple[str, str, str, str], row: Mapping[str, Any], config: Mapping[str, Any]) -> Measured:
    signal, relation, setting, unit = rule
    return Measured(
        signal, row.get(signal), relation, f"{node}.{setting}" if setting else "", setting_of(config, setting) if setting else None, unit
    )


def _edits(note: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Measured]:
    """Yields the edits that changed a kept document. note: names of the edits, joined by "+"."""
    done = note.split("+")
    if "repaired" in done:
        yield _compared("filter", ("repaired", IS, "repair.enabled", "Unicode repair"), row, config)
    if "c4.lines_removed" in done:
        yield _compared("filter", ("c4_lines_removed", IS, "c4.edit_lines", "lines"), row, config)
    for kind in KINDS if "pii" in done else ():
        if row.get(f"pii_{kind}"):
            yield _compared("filter", (f"pii_{kind}", IS, f"pii.{kind}", "replacements"), row, config)
