"""Documents that a user brings: Parquet and JSON Lines files with a text per row, as a documents artifact.

Guarantee: one shard per file in the order of the files, one document per row; doc_id is the row's own id where that is a UUID not
seen before, else uuid5(sha256 of the file, row); rows and lines count from 1. A row that cannot be taken refuses the import.
A file that unpacks to far more than its size is refused.
Cost: one pass; a row group and one file's decisions in memory, and the ids of all documents.
Source: the fields are those of FineWeb's files (text, id, url, date), the rest of a row is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from stages.core.contract.declaration import Context, ExternalFile, Importer, Outcome, RecordCounts
from stages.core.contract.errors import RecipeError
from stages.core.tables.documents import DECISIONS, DOCUMENTS
from stages.core.tables.jsonl import JsonRecord, base_name, parquet_columns, parquet_rows, read_records
from stages.core.tables.parquet import schema, write_rows

PATTERNS = ("**/*.parquet", "**/*.jsonl", "**/*.jsonl.gz")
FIELDS = ("text", "id", "doc_id", "url", "date", "source", "lang", "lang_score")
FREE_BYTES, MAX_RATIO, ROW_BYTES = 256 << 20, 100, 256
"""A file whose rows grow past FREE_BYTES and past MAX_RATIO times its size is a bomb (extract.max_ratio has the same number). A row counts
its text and ROW_BYTES, about what is kept of it in memory."""
SCORE = 1e6  # no language detector gives more; what is far above is another column

DetectLanguage = Callable[[str], tuple[str, float]]


def take_documents(files: Sequence[ExternalFile], out: Path, ctx: Context, detect: DetectLanguage | None = None) -> Outcome:
    """Writes documents/ and decisions/. detect: text -> (language, score) for rows without a language; None leaves both empty."""
    _refuse_twice(files)
    seen: set[UUID] = set()
    record_counts = RecordCounts()
    for number, file in enumerate(files):
        record_counts += _take_file(file, out, f"{number:05d}.parquet", ctx, detect, seen)
        ctx.progress(number + 1, len(files), "files", base_name(file))
    return Outcome(
        rows=record_counts.kept, record_counts=record_counts, summary={"files": len(files), "documents": record_counts.kept, "text_chars": record_counts.chars_out}
    )  # fmt: skip


IMPORTER = Importer(PATTERNS, take_documents)
"""For a stage after which no language is asked for."""


def _take_file(file: ExternalFile, out: Path, name: str, ctx: Context, detect: DetectLanguage | None, seen: set[UUID]) -> RecordCounts:
    decisions: list[dict[str, Any]] = []
    chars = grown = 0

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal chars, grown
        for record in _records(file, ctx):
            if fault := _fault(record.value):
                ctx.drop(fault, record.where, record.text())
                continue
            grown += len(record.value["text"]) + ROW_BYTES
            if grown > max(FREE_BYTES, MAX_RATIO * file.bytes):
                raise RecipeError(
                    f"{base_name(file)} grows past {FREE_BYTES >> 20} MiB and {MAX_RATIO} times its {file.bytes:,} bytes: it repeats a text, "
                    "or is made to fill the disk.",
                    where=record.where,
                    do="Write it again without the copies, or uncompressed.",
                )
            document = _document(record, detect, seen)
            chars += len(document["text"])
            decisions.append({"doc_id": document["doc_id"], "url": document["url"], "verdict": "kept", "reason": None})
            yield document

    rows = write_rows(out / "documents" / name, schema(**DOCUMENTS.types), documents())
    write_rows(out / "decisions" / name, schema(**DECISIONS.types), decisions)
    return RecordCounts(rows_in=rows, kept=rows, chars_in=chars, chars_out=chars)


def _refuse_twice(files: Sequence[ExternalFile]) -> None:
    first: dict[str, str] = {}
    for file in files:
        if file.sha256 in first:
            raise RecipeError(
                f"{base_name(file)} has the same content as {first[file.sha256]}: its documents would be there twice.",
                where=file.uri,
                do="Name each file once.",
            )
        first[file.sha256] = base_name(file)


def _records(file: ExternalFile, ctx: Context) -> Iterator[JsonRecord]:
    """The rows of a file, of Parquet with the columns that matter."""
    if not file.uri.endswith(".parquet"):
        yield from read_records((file,), ctx)
        return
    columns = [name for name in parquet_columns(Path(file.uri), file) if name in FIELDS]
    if twice := [name for name in FIELDS if columns.count(name) > 1]:
        raise RecipeError(f"{base_name(file)} has two columns {twice[0]}.", where=file.uri, do="Keep one of them.")
    if "text" not in columns:
        raise RecipeError(f"{base_name(file)} has no column text.", where=file.uri, do="Rename the column that holds the text.")
    for number, row in enumerate(parquet_rows(Path(file.uri), file, columns), start=1):
        yield JsonRecord(file, number, {name: _plain(value) for name, value in row.items() if value is not None})


def _plain(value: Any) -> Any:
    """Dates and UUIDs as text, as JSON would have them."""
    if isinstance(value, datetime.date):  # a datetime is a date too
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _fault(row: dict[str, Any]) -> str:
    """Why a row cannot be a document; empty when it can."""
    text = row.get("text")
    if not isinstance(text, str):
        return "the row has no text" if text is None else "the text is not a string"
    if not text.strip():
        return "the text is empty"
    for name in ("url", "date", "source", "lang"):
        if not isinstance(row.get(name, ""), str | None):
            return f"{name} is not a string"
    score = row.get("lang_score", 0.0)
    if isinstance(score, bool) or not isinstance(score, int | float | None):
        return "lang_score is not a number"
    if score is not None and not -SCORE <= score <= SCORE:  # NaN too
        return "lang_score is out of range"
    try:
        "".join(row.get(name) or "" for name in ("text", "url", "date", "source", "lang")).encode()
    except UnicodeEncodeError:
        return "the row holds half a surrogate pair, which is no character"
    return ""


def _document(record: JsonRecord, detect: DetectLanguage | None, seen: set[UUID]) -> dict[str, Any]:
    row = record.value
    own = _uuid(row.get("id")) or _uuid(row.get("doc_id"))
    doc_id = own if own and own not in seen else record.doc_id
    seen.add(doc_id)
    language: tuple[str | None, float | None] = (row.get("lang") or None, row.get("lang_score"))
    if language[0] is not None:
        language = (language[0], 1.0 if language[1] is None else float(language[1]))  # stated, not guessed
    elif detect:
        language = detect(row["text"])
    given = {"url": row.get("url") or "", "date": row.get("date") or "", "text": row["text"]}
    return {"doc_id": doc_id, "source": record.source, "lang": language[0], "lang_score": language[1], **given}


def _uuid(value: Any) -> UUID | None:
    """The UUID that a string such as <urn:uuid:…> spells; None where it spells none."""
    bare = value.strip().strip("<>").removeprefix("urn:uuid:") if isinstance(value, str) else ""
    try:
        return UUID(bare) if len(bare) == 36 else None
    except ValueError:
        return None
