"""One document through the filter: repaired, measured, edited, judged, redacted.

Guarantee: a function of the document and the settings alone; what is remembered (words) changes the time, not the result. Every signal
is computed whatever the verdict. Cost and sources: see the modules it calls.
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
    """Why a kept document was changed; several are joined by "+"."""

    REPAIRED = "repaired"
    LINES_REMOVED = "c4.lines_removed"
    PII = "pii"


@dataclass(frozen=True)
class Tools:
    """What one process needs. settings: a filter section as plain values; rules: those that are on; None for what is off. classifier:
    (fastText model, label)."""

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
    """reason: "" keeps the document. text: as it goes on. note: what changed it. signals: every value of `quality.columns`."""

    reason: str
    text: str
    note: str
    signals: Mapping[str, Any]


@lru_cache(maxsize=1)
def make_tools(prepared: str) -> Tools:
    """prepared: JSON with the settings ("config") and the paths "lists", "lang_model", "classifier" (null: off) and its "label".

    Remembered, so that the words known from one shard are known in the next of the same process.
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
    """detected: language and score as extract found them. listed: what the lists say of the URL, where they are looked at."""
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
