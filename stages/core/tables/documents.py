"""One documents shard judged row by row: what is kept, changed or dropped, the decisions beside, and balanced record counts.

Guarantee: one decision per input row, in input order; kept rows keep every column; the shard's record counts balance. Cost: one row
group in memory. Used by every stage that reads documents and writes documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stages.core.contract.declaration import Context, RecordCounts
from stages.core.contract.side_table import Column, SideTable
from stages.core.tables.parquet import count_rows, read_rows, schema, write_rows
from stages.core.tables.shards import Meter

DOCUMENTS = SideTable(
    "documents", "documents", "a document that stays",
    {
        "doc_id": Column("uuid", "follows the document through every stage"),
        "source": Column("string", "the corpus it came with"),
        "url": Column("string", "where it was found; null of files without one"),
        "date": Column("string", "when it was fetched, ISO 8601"),
        "lang": Column("string", "ISO 639-1 code of its language"),
        "lang_score": Column("float64", "how sure the language is, 0 to 1"),
        "text": Column("string", "the text as this stage leaves it"),
    },
)  # fmt: skip
DECISIONS = SideTable(
    "decisions", "decisions", "a record that came in, and what became of it",
    {
        "doc_id": Column("uuid", "the record"),
        "url": Column("string", "where it was found; null of files without one"),
        "verdict": Column("string", "kept, changed or dropped"),
        "reason": Column("string", "why it was dropped or changed; null where it is as it was"),
    },
)  # fmt: skip


def decisions_with(columns: Mapping[str, Column], more: str = "") -> SideTable:
    """The decisions of a stage that notes more than verdict and reason."""
    return replace(DECISIONS, columns={**DECISIONS.columns, **columns}, more=more)


@dataclass(frozen=True)
class Ruling:
    """What becomes of a document. reason: "" keeps it, anything else drops it for that reason. text: None leaves it as it is.

    signals: values for the decision columns. note: why a kept document was changed. columns: new values of its other columns.
    """

    reason: str = ""
    text: str | None = None
    note: str = ""
    signals: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)


def judge_shard(
    source: Path, folder: Path, judge: Callable[[dict[str, Any]], Ruling], signals: Mapping[str, str], meter: Meter
) -> dict[str, Any]:
    """Writes documents.parquet and decisions.parquet into `folder`; returns {"record_counts": …} as plain JSON.

    source: a documents/NNNNN.parquet. judge: called with each row. signals: decision columns (name -> short type). meter: counts.
    """
    import pyarrow.parquet as pq

    kept_schema = pq.read_schema(source)
    meter.expect(count_rows(source))
    counts: dict[str, list[int]] = {}

    def rulings() -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
        for row in read_rows(source):
            ruling = judge(row)
            text = row["text"] if ruling.text is None else ruling.text
            verdict = "dropped" if ruling.reason else "kept" if text == row["text"] else "changed"
            total = counts.setdefault(ruling.reason if ruling.reason else f"={verdict}", [0, 0, 0])
            for i, amount in enumerate((1, len(row["text"]), len(text))):
                total[i] += amount
            meter.add(1, len(row["text"].encode()), ruling.reason)
            decision = {"doc_id": row["doc_id"], "url": row["url"], "verdict": verdict, **ruling.signals}
            decision["reason"] = ruling.reason or (ruling.note if verdict == "changed" else "") or None
            yield decision, None if ruling.reason else {**row, **ruling.columns, "text": text}

    decisions: list[dict[str, Any]] = []

    def documents() -> Iterator[dict[str, Any]]:
        for decision, document in rulings():
            decisions.append(decision)
            if document is not None:
                yield document

    rows = write_rows(folder / "documents.parquet", kept_schema, documents())
    write_rows(folder / "decisions.parquet", schema(**DECISIONS.types, **signals), decisions)
    return {"record_counts": asdict(_record_counts(counts)), "rows": rows}


def _record_counts(counts: Mapping[str, list[int]]) -> RecordCounts:
    kept, changed = counts.get("=kept", [0, 0, 0]), counts.get("=changed", [0, 0, 0])
    dropped = {reason: total for reason, total in sorted(counts.items()) if not reason.startswith("=")}
    return RecordCounts(
        rows_in=sum(total[0] for total in counts.values()),
        kept=kept[0],
        changed=changed[0],
        dropped={reason: total[0] for reason, total in dropped.items()},
        chars_in=sum(total[1] for total in counts.values()),
        chars_out=kept[2] + changed[2],
        chars_removed=changed[1] - changed[2],
        chars_dropped={reason: total[1] for reason, total in dropped.items()},
    )


def add_record_counts(results: list[Mapping[str, Any]]) -> RecordCounts:
    """The sum of the record counts that `judge_shard` returned."""
    return sum((RecordCounts(**result["record_counts"]) for result in results), RecordCounts())


def matched_by_pattern(patterns: Sequence[str], found: Sequence[Mapping[str, int]], setting: str, ctx: Context) -> dict[str, int]:
    """Summary entries: documents that each URL pattern of a takedown matched; the log names those that matched none.

    found: what each shard counted. A document counts for every pattern that matches it.
    """
    counts = {pattern: sum(shard.get(pattern, 0) for shard in found) for pattern in patterns}
    for pattern, count in counts.items():
        if not count:
            ctx.log(f"{setting}: the pattern {pattern!r} matched no document")
    return {f"matched {pattern}": count for pattern, count in counts.items()}


def document_shards(artifact: Path) -> list[Path]:
    """The documents/NNNNN.parquet of an artifact, in order."""
    return sorted((artifact / "documents").glob("*.parquet"))
