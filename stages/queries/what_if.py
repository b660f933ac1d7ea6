"""Computes from stored signals what the filter's document rules would keep at other thresholds, without a rerun.

Guarantee: read-only. The answer is what a rerun would give, because the rules are those that the stage applies
(stages/text/quality/rules.py). Settings that decide a text or a signal are refused by name. Recorded decisions that today's rules do not
reproduce are refused too.
Cost: about 30,000 documents per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.core.contract.errors import RecipeError, StageError
from stages.core.contract.recipe import apply_setting, validated
from stages.core.index import lookup
from stages.core.store import manifest
from stages.core.tables.parquet import read_rows
from stages.text.quality.filter_rule import AppliedRule, applied, first_reason
from stages.text.quality.rules import RULES, needs_rerun

if TYPE_CHECKING:
    from stages.core.contract.declaration import Stage

EXAMPLE = "--set filter.gopher_quality.min_doc_words=80"


def what_if(home: Path, name: str, stage: Stage, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Rows, one per verdict (kept, then each drop reason), that compare the recorded verdicts with those under changed settings.

    Args:
        home: the home folder.
        name: a filter artifact, or "filter" for the current one.
        stage: the declaration of the filter.
        settings: changed settings, each "filter.key=value".

    Returns:
        Rows of verdict, today (documents with the verdict as recorded), then (documents with it under the new settings), change (then -
        today), new (documents with it only under the new settings) and chars_then (characters of the documents of `then`).

    Raises:
        RecipeError: the artifact is not of the filter, or a setting is not valid, belongs to another node or needs a rerun.
        StageError: there is no such artifact, or other code made it, so that today's rules do not apply to it.
    """
    found = lookup.latest_artifact(home, name)
    if found["stage"] != stage.name:
        raise RecipeError(
            f"{found['artifact_id']} is no artifact of {stage.name}.", where=str(home), do=f"Name {stage.name} or one of its artifacts."
        )
    artifact = manifest.read_artifact(home / found["path"])
    where = found["artifact_id"]
    if artifact.manifest["version"] != stage.version:
        raise StageError(
            f"The artifact was made by version {artifact.manifest['version']} of {stage.name}; its signals are others than today's.",
            where=where,
            do=f"Run {stage.name} again, then ask.",
        )
    sections: dict[str, Any] = {stage.name: artifact.manifest["config"]}
    before = validated(stage.config, sections[stage.name], where).model_dump(mode="json")
    for setting in settings:
        if setting.partition(".")[0] != stage.name:
            raise RecipeError(f"{setting!r} is no setting of {stage.name}.", do=f"Write for example {EXAMPLE}.")
        apply_setting(sections, setting, {stage.name: stage.config})
    after = validated(stage.config, sections[stage.name], "--set").model_dump(mode="json")
    return compare(artifact.path, before, after, where)


def compare(artifact: Path, before: Mapping[str, Any], after: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The rows of `what_if`, for complete and checked settings. where: the name of the artifact in error messages."""
    refused = needs_rerun(before, after)
    if refused:
        raise RecipeError(
            f"Stored signals cannot tell what {', '.join(f'filter.{name}' for name in refused)} would change: "
            "it decides a text or a signal, not only a verdict.",
            where=where,
            do="Run the filter again: loam run RECIPE --until filter --set …",
        )
    rules, scored = (applied(RULES, before), applied(RULES, after)), after["quality"]["min_score"] is not None
    today, then, fresh, chars = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for path in sorted((artifact / "decisions").glob("*.parquet")):
        for row in read_rows(path):
            old, new = _reasons(row, rules, scored, where)
            today[old] += 1
            then[new] += 1
            chars[new] += row["chars"]
            fresh[new] += old != new
    reasons = sorted({*today, *then} - {""}, key=lambda reason: (-then[reason], reason))
    return [
        {
            "verdict": f"dropped: {reason}" if reason else "kept",
            "today": today[reason],
            "then": then[reason],
            "change": then[reason] - today[reason],
            "new": fresh[reason],
            "chars_then": chars[reason],
        }
        for reason in ("", *reasons)
    ]


def _reasons(
    row: Mapping[str, Any], rules: tuple[Sequence[AppliedRule], Sequence[AppliedRule]], scored: bool, where: str
) -> tuple[str, str]:
    """(reason today, reason then); an empty reason means kept.

    Args:
        row: the recorded decision.
        rules: the rules under today's and under the new settings.
        scored: whether the new settings compare the quality score.
        where: the name of the artifact in error messages.
    """
    before, after = rules
    if row["quality_score"] is None and scored:
        raise RecipeError(
            "The documents have no score: no classifier was there.", where=where, do="Give train_quality.positives and run again."
        )
    old = first_reason(row, before)
    recorded = row["reason"] if row["verdict"] == "dropped" else ""
    if old != recorded:
        raise StageError(
            f"Today's rules do not give the recorded verdict of {row['doc_id']}: {old or 'kept'}, recorded {recorded or 'kept'}.",
            where=where,
            do="The artifact was made by other code; run the filter again.",
        )
    return old, first_reason(row, after)
