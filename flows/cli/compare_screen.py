"""Prints the comparison of two runs on one screen: scores, then settings, then sizes of the data, then how many values more differ.

Guarantee: at most ROWS rows of tables, two lines of title per table, and one line each for nodes and scores that cannot be compared, other
code, and what is not shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flows.cli.printing import print_table, say

if TYPE_CHECKING:
    from stages.questions.compare import RunsOverview, ScoreDifference, SizeDifference

ROWS = 16
"""Rows of the three tables together."""
FEW = 4
"""Rows of the tables of settings and of data, each. The scores get the rest."""
CHARS = 40
"""Characters of a setting."""

Row = Mapping[str, str | int | float | None]


def print_overview(found: RunsOverview, a: str, b: str) -> None:
    """Prints what differs between two runs.

    Args:
        found: the comparison.
        a: the name of the first run, as the user wrote it.
        b: the name of the second run.
    """
    scores, settings = [_score(row) for row in found.scores], [_setting(row) for row in found.settings]
    data = [_data(row) for row in found.data]
    shown = [
        ("scores", scores[: ROWS - min(FEW, len(settings)) - min(FEW, len(data))]),
        ("settings", settings[:FEW]),
        ("data", data[:FEW]),
    ]
    say(f"a = {a}, b = {b}")
    for _, rows in shown:
        if rows:
            say()
            print_table(rows)
    _say_the_rest(
        found, a, b, {"scores": len(scores), "settings": len(settings), "data": len(data)}, {name: len(rows) for name, rows in shown}
    )


def _say_the_rest(found: RunsOverview, a: str, b: str, there: Mapping[str, int], shown: Mapping[str, int]) -> None:
    """Prints what the tables do not show. there, shown: table -> number of rows."""
    notes = [
        (f"only {a} reached", found.only_a),
        (f"only {b} reached", found.only_b),
        (f"scored for {a} alone", found.scored_a),
        (f"scored for {b} alone", found.scored_b),
        ("other code or versions of packages built", found.code),
        ("removed by gc, so not compared", found.gone),
    ]
    more = [f"{there[name] - shown[name]} {name}" for name in there if there[name] > shown[name]]
    more += [f"{found.others} other values"] if found.others else []
    if any(there.values()) or more or any(nodes for _, nodes in notes):
        say()
    else:
        say("Both have the same artifacts.")
    for what, nodes in notes:
        if nodes:
            say(f"{what}: {', '.join(nodes)}")
    if more:
        say(f"{', '.join(more)} differ too: `loam compare {shlex.join((a, b))} --details`")


def _score(row: ScoreDifference) -> Row:
    p = "" if row["p"] is None else "p < 0.001" if row["p"] < 0.001 else f"p {row['p']:.3f}"
    of = " ".join(part for part in (row["model"], row["task"], row["metric"]) if part)
    return {
        "score": of,
        "a": _number(row["a"]),
        "b": _number(row["b"]),
        "b - a": f"{row['difference']:+.4f}",
        "tested": p,
        "": row["shown"],
    }


def _setting(row: Mapping[str, object]) -> Row:
    name = f"import.{row['node']}" if row["what"] == "import" else f"{row['node']}.{str(row['what']).removeprefix('config.')}"
    return {"setting": name, "a": _short(row["a"]), "b": _short(row["b"])}


def _data(row: SizeDifference) -> Row:
    return {
        "data": row["node"],
        "rows of a": row["rows_a"],
        "rows of b": row["rows_b"],
        "b - a": f"{row['rows_b'] - row['rows_a']:+,}",
        "tokens of a": row["tokens_a"] or None,
        "tokens of b": row["tokens_b"] or None,
    }


def _number(value: float) -> str:
    return f"{value:.4f}"


def _short(value: object) -> str:
    text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    return text if len(text) <= CHARS else f"{text[: CHARS - 1]}…"
