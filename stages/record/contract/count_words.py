"""Record counts in words, for people: progress, logs, the report and the dashboard use the same ones.

A record of a crawl that holds a request or the crawl's own data was never a page, so it is "skipped: no page" and not "dropped". Documents that
a stage kept with less text are "shortened". A stage that changed all of them did not keep 0 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stages.record.store.manifest_schema import RecordCountsEntry

NO_PAGE = "not_a_page"
"""The reason of extract for a record that is no page."""
SKIPPED = "skipped: no page"
SHOWN_REASONS = 6


def reason_words(reason: str) -> str:
    """Returns a reason as people call it. Only the one that is no loss has other words than in the tables."""
    return SKIPPED if reason == NO_PAGE else reason


def lost(dropped: Mapping[str, int]) -> dict[str, int]:
    """Returns reason -> number of records, the most frequent first, without records that are no page and reasons of no record."""
    return {reason: count for reason, count in sorted(dropped.items(), key=lambda item: (-item[1], item[0])) if count and reason != NO_PAGE}


def record_counts_text(counts: RecordCountsEntry) -> str:
    """Returns record counts as text: "1,503 pages in, 1,201 kept, 40 shortened, 262 dropped (language 200, no_text 62)".

    It names the SHOWN_REASONS most frequent reasons, and how many records have others.
    """
    kept, changed, reasons = counts["kept"], counts["changed"], lost(counts["dropped"])
    shown = [*reasons.items()][:SHOWN_REASONS]
    total = sum(reasons.values())
    others = total - sum(count for _, count in shown)
    skipped = counts["dropped"].get(NO_PAGE, 0)
    parts = [f"{counts['rows_in']:,} {counts['unit']} in"]
    parts += [f"{skipped:,} {SKIPPED}"] if skipped else []
    parts += [f"{kept:,} kept"] if kept or not changed else []
    parts += [f"{changed:,} {'shortened' if counts['chars_removed'] > 0 else 'changed'}"] if changed else []
    named = ", ".join(f"{reason} {count:,}" for reason, count in [*shown, ("others", others)] if count)
    return ", ".join([*parts, *([f"{total:,} dropped ({named})"] if total else [])])
