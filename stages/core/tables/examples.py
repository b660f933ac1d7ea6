"""Reads tuning examples (conversations or pairs) from files and from the benchmarks' answers, and writes them with one decision each.

Guarantee: every record is in the table, in decisions/ or counted as a bad record.
Cost: one pass; the rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stages.core.contract.declaration import Context, Outcome
from stages.core.contract.errors import StageError
from stages.core.contract.side_table import SideTable
from stages.core.tables.jsonl import JsonRecord, decision_record_counts, no_answers, read_records
from stages.core.tables.parquet import read_rows, schema, write_rows

if TYPE_CHECKING:
    from stages.core.contract.declaration import Artifact

Value = TypeVar("Value")


class JudgedExample(Protocol):
    """A judged example.

    `decision` is a row of decisions/. `row` is a row of the table, or None for a dropped example. `chars` are its characters in the record
    counts.
    """

    @property
    def decision(self) -> dict[str, Any]: ...
    @property
    def row(self) -> dict[str, Any] | None: ...
    @property
    def chars(self) -> int: ...


def refuse_no_source(ctx: Context, docstrings: object, what: str, pattern: str) -> None:
    """Raises StageError where a recipe gives neither files nor docstrings. pattern: an example of files, for the advice."""
    if not ctx.files("files") and docstrings is None:
        raise StageError(
            f"There are no {what}: neither files nor docstrings are given.",
            where=f"{ctx.node}.files",
            do=f"Name files, for example --set '{ctx.node}.files=[{pattern}]'.",
        )


def read_examples(
    ctx: Context, read: Callable[[Mapping[str, Any]], Value], refused: type[ValueError]
) -> Iterator[tuple[JsonRecord, Value]]:
    """Yields the records of the field `files` and the value that `read` makes of each. If `read` raises `refused`, it is a bad record."""
    for record in read_records(ctx.files("files"), ctx):
        try:
            value = read(record.value)
        except refused as error:
            ctx.drop(str(error), record.where, record.text())
            continue
        yield record, value


def read_answers(ctx: Context, benchmarks: Artifact) -> Iterator[dict[str, Any]]:
    """Returns the answers that the benchmarks read from documentation. Raises StageError if they read none."""
    path = benchmarks.path / "answers.parquet"
    if not path.is_file():
        raise no_answers(ctx.node)
    return read_rows(path)


def write_examples(out: Path, table: SideTable, decided: SideTable, unit: str, judged: Iterable[JudgedExample], bad: list[str]) -> Outcome:
    """Writes the table as one file and the decisions as decisions/00000.parquet. Returns the outcome with record counts.

    Args:
        out: The artifact's folder.
        table: The table of examples.
        decided: The table of decisions.
        unit: What one example is called in the record counts.
        judged: The judged examples.
        bad: The list of jsonl.counting. It grows while `judged` is read.
    """
    kept: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    sizes: dict[str, int] = {"": 0}
    for example in judged:
        reason = example.decision["reason"] or ""
        sizes[reason] = sizes.get(reason, 0) + example.chars
        decisions.append(example.decision)
        if example.row is not None:
            kept.append(example.row)
    write_rows(out / f"{table.name}.parquet", schema(**table.types), kept)
    write_rows(out / decided.name / "00000.parquet", schema(**decided.types), decisions)
    record_counts = decision_record_counts(unit, decisions, sizes, len(bad))
    validation = sum(row["split"] == "validation" for row in kept)
    summary = {"train": len(kept) - validation, "validation": validation, "held_out_dropped": record_counts.dropped.get("held_out", 0)}
    return Outcome(rows=len(kept), record_counts=record_counts, summary=summary)
