"""Formats the verdicts of a report for its page, its summary, its log and its JSON. Strings only; it decides nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypedDict

from stages.evaluation.statistics.verdicts import ALPHA, CONFIDENCE, Verdict, VerdictOutcome, count_outcomes

NOTE = (
    f"Outcomes follow from the two-sided p value after Holm's correction over the claims of a table, at a level of {ALPHA:.0%}. "
    f"± is one standard error of the difference; the interval covers {CONFIDENCE:.0%} for one claim alone. A positive difference speaks for "
    "the claim. All tests treat items, documents and pairs as independent."
)

MACRO = """
{%- macro verdict_table(rows) -%}
{%- if rows -%}
<div class="wide"><table><thead><tr>{% for name in rows[0] %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for name, value in row.items() %}<td>{% if name == 'outcome' %}<b class="{{
'good' if value == 'reached' else 'bad' if value == 'opposite' else 'soft' }}">{{ value }}</b>{% else %}{{ value }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endif -%}
{%- endmacro -%}
"""
"""A Jinja2 macro that shows rows of `section` as a table, with the outcome in its colour."""


class VerdictTexts(TypedDict):
    """The verdicts as a page shows them: rows and counts of the required claims and of the comparisons, and how to read them."""

    claims: list[dict[str, str]]
    claims_count: str
    comparisons: list[dict[str, str]]
    comparisons_count: str
    note: str


def section(required: Sequence[Verdict], compared: Sequence[Verdict]) -> VerdictTexts:
    """Returns the values for the page and the summary: rows and counts of both lists, and a note on how to read them."""
    return {
        "claims": verdict_rows(required),
        "claims_count": count_line(required),
        "comparisons": verdict_rows(compared),
        "comparisons_count": count_line(compared),
        "note": NOTE,
    }


def verdict_rows(family: Sequence[Verdict]) -> list[dict[str, str]]:
    """Returns one row per verdict, for the page and the summary."""
    return [
        {
            "outcome": verdict.outcome.value,
            "claim": verdict.claim,
            "difference": _difference(verdict),
            "interval": f"{verdict.interval[0]:+.3f} to {verdict.interval[1]:+.3f}" if verdict.interval else "",
            "n": f"{verdict.pairs:,}",
            "test": verdict.test or f"none: {verdict.note}",
            "p": _p(verdict.p),
            "p, corrected": _p(verdict.p_adjusted),
        }
        for verdict in family
    ]


def sentence(verdict: Verdict) -> str:
    """Returns one verdict as a line of a log."""
    if not verdict.test:
        return f"{verdict.outcome.value}: {verdict.claim} ({verdict.note})"
    facts = [_difference(verdict), f"n {verdict.pairs:,}", verdict.test, f"p {_p(verdict.p)}, corrected {_p(verdict.p_adjusted)}"]
    return f"{verdict.outcome.value}: {verdict.claim} ({', '.join(facts)})"


def count_line(family: Sequence[Verdict]) -> str:
    """Returns the number of verdicts by outcome, as a sentence.

    >>> count_line([])
    '0 claims: 0 reached, 0 not shown, 0 opposite.'
    """
    counts = count_outcomes(family)
    noun = "claim" if len(family) == 1 else "claims"
    return f"{len(family)} {noun}: {', '.join(f'{counts[outcome]} {outcome.value}' for outcome in VerdictOutcome)}."


def verdicts_json(required: Sequence[Verdict], compared: Sequence[Verdict], seed: int) -> str:
    """Returns the content of verdicts.json: every verdict in full precision, with the level, the correction and the seed."""
    about = {"level": ALPHA, "confidence_of_intervals": CONFIDENCE, "correction": "Holm, over the tested claims of a list", "seed": seed}
    families = {"claims": required, "comparisons": compared}
    lists = {name: [asdict(verdict) | {"outcome": verdict.outcome.value} for verdict in family] for name, family in families.items()}
    return json.dumps(about | lists, indent=1, ensure_ascii=False) + "\n"


def _difference(verdict: Verdict) -> str:
    if verdict.difference is None:
        return ""
    error = "" if verdict.standard_error is None else f" ± {verdict.standard_error:.3f}"
    return f"{verdict.difference:+.3f}{error} {verdict.unit}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
