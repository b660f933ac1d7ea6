"""Runs one document through the filter: repairs it, computes its signals, edits its lines, decides the verdict, redacts it.

Guarantee: the result is a function of the document and the settings alone. The word cache changes the time, not the result. Every signal is
computed whatever the verdict.
Cost and sources: see the modules that it calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.text.quality import classifier, pii, repair, rules, signals, urls
from stages.text.quality.filter_rule import AppliedRule, applied, first_reason
from stages.text.quality.stored_signals import OF_URL
from stages.text.warc import language_id

if TYPE_CHECKING:
    from ftfy import TextFixerConfig


class EditNote(StrEnum):
    """Why a kept document was changed. Several notes are joined by "+"."""

    REPAIRED = "repaired"
    LINES_REMOVED = "c4.lines_removed"
    PII = "pii"


@dataclass(frozen=True)
class Tools:
    """Everything that one process needs to filter documents. None stands for a part that is off.

    Attributes:
        settings: A filter section, as plain values.
        rules: Rules that are on.
        measure: What the computation of signals needs.
        repair: ftfy's configuration.
        patterns: Kinds of personal data that are redacted.
        lists: datatrove's URL lists.
        lang_model: fastText model for languages.
        classifier: (fastText model, label of the score).
    """

    settings: Mapping[str, Any]
    rules: tuple[AppliedRule, ...]
    measure: signals.Measure
    repair: TextFixerConfig | None
    patterns: tuple[pii.Pattern, ...]
    lists: urls.Blocklist | None
    lang_model: Any
    classifier: tuple[Any, str] | None


@dataclass(frozen=True)
class Judged:
    """Result of the filter for one document.

    Attributes:
        reason: Reason to drop the document; "" keeps it.
        text: The text that continues through the pipeline.
        note: What changed the text (EditNote).
        signals: Value of every column of `rules.columns`.
    """

    reason: str
    text: str
    note: str
    signals: Mapping[str, Any]


@lru_cache(maxsize=1)
def make_tools(prepared: str) -> Tools:
    """Returns the tools of a process, and caches them so that the next shard in the same process reuses the known words.

    prepared: JSON with the settings ("config"), the paths "lists", "lang_model" and "classifier" (null: off), and the "label" of the
    classifier.
    """
    given = json.loads(prepared)
    config = given["config"]
    mend = {name: value for name, value in config["repair"].items() if name != "enabled"}
    return Tools(
        config,
        applied(rules.RULES, config),
        signals.make_measure(config),
        repair.make_repair(mend) if config["repair"]["enabled"] else None,
        pii.make_patterns(config["pii"]),
        urls.open_lists(Path(given["lists"])) if given["lists"] else None,
        classifier.load_model(Path(given["lang_model"])) if given["lang_model"] else None,
        (classifier.load_model(Path(given["classifier"]), given["label"]), given["label"]) if given["classifier"] else None,
    )


def judge(text: str, detected: tuple[str, float], url: str, listed: Mapping[str, Any] | None, tools: Tools) -> Judged:
    """Returns verdict, text, note and signals of one document.

    Args:
        text: The text from extract.
        detected: (language, score) from extract.
        url: Address of the document.
        listed: URL signals of the document; None where the URL lists are off.
        tools: Tools of this process.
    """
    mended = repair.repair_text(text, tools.repair) if tools.repair else text
    language = _language(mended, detected, tools)
    found: dict[str, Any] = {**(listed or dict.fromkeys(signal.name for signal in OF_URL)), **language, "repaired": mended != text}
    measured, edited = signals.text_signals(mended, language["lang"], tools.measure)
    found |= measured | {"quality_score": classifier.score(*tools.classifier, mended) if tools.classifier else None}
    redacted, counts = pii.redact_text(edited, tools.patterns)
    found |= counts
    edits = ((EditNote.REPAIRED, mended != text), (EditNote.LINES_REMOVED, edited != mended), (EditNote.PII, redacted != edited))
    note = "+".join(name for name, done in edits if done)
    return Judged(first_reason(found | {"url": url}, tools.rules), redacted, note, found)


def _language(text: str, detected: tuple[str, float], tools: Tools) -> dict[str, Any]:
    if tools.lang_model is not None:
        (lang, score), by = language_id.model_language(text, tools.lang_model), "model"
    elif detected[1] < tools.settings["sure_lang_score"]:
        (lang, score), by = language_id.second_opinion(text), "py3langid"
    else:
        (lang, score), by = detected, "resiliparse"
    return {"lang": lang, "lang_score": score, "lang_by": by}
