"""The tables of the documents that are made from declarations in the code. `make docs` writes them between their markers.

It stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`; tests/architecture/test_stages.py fails where it is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from flows.pipeline import pipeline, stage_of
from stages.text.quality.rules import RULES


def rules() -> list[tuple[str, ...]]:
    """One row per rule of the filter, in order."""
    rows = [("reason", "setting", "default", "unit", "signal", "source")]
    for rule in RULES:
        given = rule.threshold
        setting, default = (f"`{rule.setting}`", f"`{_yaml(given.default)}`") if given else ("-", "-")
        unit, source = (given.unit, given.source) if given else (rule.signal.unit, rule.signal.source)
        rows.append((f"`{rule.full_reason}`", setting, default, unit, f"`{rule.signal.name}`", source))
    return rows


def stages() -> list[tuple[str, ...]]:
    """One row per stage, in DAG order."""
    kinds = {node.name: stage_of(node).output for node in pipeline()}
    rows = [("stage", "reads", "writes", "what it does")]
    for name, node in {node.stage_name: node for node in pipeline()}.items():
        stage = stage_of(node)
        reads = "everything" if stage.sections else ", ".join(dict.fromkeys(kinds[read] for read in node.inputs.values())) or "nothing"
        rows.append((f"`{name}`", reads, stage.output, stage.does))
    return rows


TABLES: Mapping[str, Callable[[], list[tuple[str, ...]]]] = {"stages": stages}


def rewritten(text: str) -> str:
    """A document with its tables made anew."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"docs/stages.md has no place for the table {name}: it needs the lines {begin.strip()} and {end.strip()}")
        text = head + begin + markdown(rows()) + end + tail
    return text


def markdown(rows: list[tuple[str, ...]]) -> str:
    """A table; the first row is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def _yaml(value: object) -> str:
    """A default as a recipe would say it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else re.sub(r"\s+", " ", str(value))
