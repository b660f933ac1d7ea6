"""Imports a user's documents, Parquet and JSON Lines files with one text per row, as a documents artifact.

Guarantee: one shard per file in the order of the files, one document per row. doc_id is the row's own id if it is a UUID that did not
occur before, else uuid5(sha256 of the file, row). Rows and lines count from 1. A row that cannot be imported refuses the whole import. A
file that decompresses to far more than its size is refused.
Cost: one pass; a row group and one file's decisions in memory, and the ids of all documents.
Source: the fields are those of FineWeb's files (text, id, url, date); other columns of a row are left out.
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
"""A file whose rows grow beyond FREE_BYTES and beyond MAX_RATIO times its size is refused as a decompression bomb (extract.max_ratio has
the same number). A row counts the characters of its text plus ROW_BYTES, about the memory that is kept for it."""
SCORE = 1e6  # no language detector gives a higher score; a far larger value is from another kind of column

DetectLanguage = Callable[[str], tuple[str, float]]


def take_documents(files: Sequence[ExternalFile], out: Path, ctx: Context, detect: DetectLanguage | None = None) -> Outcome:
    """Writes documents/ and decisions/.

    Args:
        files: The files to import.
        out: The artifact's folder.
        ctx: The stage's context.
        detect: Text -> (language, score), for rows without a language. None leaves both empty.

    Raises:
        RecipeError: Two files have the same content, a file has no usable columns or is a decompression bomb.
        StageError: A file cannot be read.
    """
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
"""The importer for a stage whose artifact needs no language."""


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
    """Yields the rows of a file. Of Parquet, reads only the columns in FIELDS."""
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
    """Returns dates and UUIDs as text, as JSON would hold them."""
    if isinstance(value, datetime.date):  # a datetime is a date too
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _fault(row: dict[str, Any]) -> str:
    """Returns why a row cannot be a document. Empty when it can."""
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
    if score is not None and not -SCORE <= score <= SCORE:  # also true for NaN
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
        language = (language[0], 1.0 if language[1] is None else float(language[1]))  # the user states it, so it is certain
    elif detect:
        language = detect(row["text"])
    given = {"url": row.get("url") or "", "date": row.get("date") or "", "text": row["text"]}
    return {"doc_id": doc_id, "source": record.source, "lang": language[0], "lang_score": language[1], **given}


def _uuid(value: Any) -> UUID | None:
    """Returns the UUID in a string such as <urn:uuid:…>. None if there is none."""
    bare = value.strip().strip("<>").removeprefix("urn:uuid:") if isinstance(value, str) else ""
    try:
        return UUID(bare) if len(bare) == 36 else None
    except ValueError:
        return None
