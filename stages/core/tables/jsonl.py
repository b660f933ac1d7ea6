"""Reading JSON Lines files, plain or gzipped, local or remote, one record at a time with its line number.

Guarantee: every line is either yielded, blank, or handed to `ctx.drop` with "file:line" (the recipe's limit decides whether
the stage goes on); a file that cannot be read at all is a StageError. What is a good record is said in strictjson.
Cost: one line in memory, at most MAX_LINE_BYTES of it. Source: jsonlines.org.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

from stages.core.contract.declaration import RecordCounts
from stages.core.contract.errors import RecipeError, StageError
from stages.core.contract.strict_json import BadJsonError, other_encoding, parse
from stages.core.store.remote import opened
from stages.core.tables.parquet import ROW_GROUP_ROWS

if TYPE_CHECKING:
    from stages.core.contract.declaration import Context, ExternalFile

SHOWN_CHARS = 2000
SPARED_BYTES = 64 << 20  # of the rows of a Parquet file that are Python objects at a time
MAX_LINE_BYTES = 16 << 20
BAD_RECORD = "bad_record"  # the reason that a line or row is counted under which is no record
"""Longer lines are bad records and are passed over in pieces: 5 MB of gzip can hold a line of 5 GB. The longest books of Project
Gutenberg have about half of this."""


@dataclass(frozen=True)
class JsonRecord:
    """One JSON object of a file. where: "file.jsonl:12" (no folders, which differ between machines)."""

    file: ExternalFile
    line: int
    value: dict[str, Any]

    @property
    def where(self) -> str:
        return place(self.file, self.line)

    @property
    def doc_id(self) -> UUID:
        """uuid5 of the file's sha256 and the line (ARCHITECTURE.md: the identity of a chat or preference record)."""
        return uuid5(NAMESPACE_OID, f"{self.file.sha256}:{self.line}")

    @property
    def source(self) -> str:
        """The record's own field "source", else the file's name up to its first dot."""
        named = self.value.get("source")
        return named if isinstance(named, str) and named else base_name(self.file).partition(".")[0]

    def text(self) -> str:
        """The record as one line of JSON, cut for showing."""
        return json.dumps(self.value, ensure_ascii=False, default=str)[:SHOWN_CHARS]  # a Parquet row may hold bytes or a decimal


def read_records(files: Sequence[ExternalFile], ctx: Context) -> Iterator[JsonRecord]:
    """The objects of JSONL files in the order of `files`; lines count from 1, blank lines are passed over."""
    for file in files:
        for number, raw, whole in _lines(file):
            if not raw.strip():
                continue
            try:
                if not whole:
                    raise BadJsonError(f"more than {MAX_LINE_BYTES >> 20} MiB")
                value = parse(raw)
            except BadJsonError as error:
                ctx.drop(f"the line is not JSON ({error})", place(file, number), _shown(raw))
                continue
            if isinstance(value, dict):
                yield JsonRecord(file, number, value)
            else:
                ctx.drop("the line is not a JSON object", place(file, number), _shown(raw))


def read_lines(file: ExternalFile) -> Iterator[str]:
    """The lines of a text file, plain or gzipped. Raises StageError where one is not UTF-8 or too long."""
    for number, raw, whole in _lines(file):
        if not whole:
            raise StageError(f"The line has more than {MAX_LINE_BYTES >> 20} MiB.", where=place(file, number), do="Break it into several.")
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            raise StageError("The line is not UTF-8.", where=place(file, number), do="Convert the file.") from None


def counting(ctx: Context) -> tuple[Context, list[str]]:
    """The same context, and a list to which every `drop` adds its place: the bad records, for the record counts."""
    bad: list[str] = []

    def drop(reason: str, where: str, record: str) -> None:
        bad.append(where)
        ctx.drop(reason, where, record)

    return replace(ctx, drop=drop), bad


def decision_record_counts(unit: str, decisions: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], bad: int) -> RecordCounts:
    """Record counts over rows of verdict and reason. sizes: characters by reason ("" = kept); bad records count without characters."""
    dropped = {reason: sum(d["reason"] == reason for d in decisions) for reason in sorted(sizes) if reason}
    if bad:
        dropped[BAD_RECORD] = bad
    return RecordCounts(
        unit,
        rows_in=len(decisions) + bad,
        kept=sum(d["verdict"] == "kept" for d in decisions),
        dropped=dropped,
        chars_in=sum(sizes.values()),
        chars_out=sizes.get("", 0),
        chars_dropped={reason: size for reason, size in sorted(sizes.items()) if reason},
    )


def no_answers(node: str) -> StageError:
    """What a stage raises that is to make questions from documentation which the benchmarks did not read."""
    return StageError(
        f"{node}.docstrings needs the answers that the benchmarks read from documentation, and they read none.",
        where=f"{node}.docstrings",
        do=f"Set benchmarks.docstrings, or set {node}.docstrings to null and name files.",
    )


def parquet_columns(path: Path, file: ExternalFile) -> list[str]:
    """The names of a Parquet file's columns. path: where the file lies. Raises RecipeError when it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{base_name(file)} is not a Parquet file: {_first_line(error)}", where=file.uri, do="Fetch or write it again."
        ) from None


def parquet_rows(path: Path, file: ExternalFile, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file that somebody else wrote. Raises StageError where it cannot be read to its end."""
    import pyarrow as pa

    rows = _sparing(path, columns)
    while True:
        try:
            row = next(rows, None)
        except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:  # also of dates out of Python's range
            raise StageError(
                f"{base_name(file)} cannot be read to its end: {_first_line(error)}", where=file.uri, do="Fetch or write it again."
            ) from None
        if row is None:
            return
        yield row


def _sparing(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows, with a string that many of them share kept once: a dictionary lets a file of 1 MB say a million times 1 MB."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def is_text(kind: pa.DataType) -> bool:
        return any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary))

    def longest(column: pa.Array) -> int:
        if pa.types.is_dictionary(column.type) and is_text(column.type.value_type):
            return pc.max(pc.binary_length(column.dictionary)).as_py() or 0
        return 0

    texts = [field.name for field in pq.read_schema(path) if field.name in columns and is_text(field.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS, columns=list(columns)):
            at_once = max(1, min(ROW_GROUP_ROWS, SPARED_BYTES // (1 + sum(longest(column) for column in batch.columns))))
            for start in range(0, batch.num_rows, at_once):
                yield from batch.slice(start, at_once).to_pylist()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def place(file: ExternalFile, line: int) -> str:
    """file name:line, for messages and bad_records.jsonl."""
    return f"{base_name(file)}:{line}"


def base_name(file: ExternalFile) -> str:
    """The last part of a file's path or URI."""
    return file.uri.rstrip("/").rpartition("/")[2]


def _lines(file: ExternalFile) -> Iterator[tuple[int, bytes, bool]]:
    """(number, bytes, whether they are all of the line) of each line; of one that is too long, its beginning."""
    from lzma import LZMAError
    from zipfile import BadZipFile
    from zlib import error as ZlibError

    try:
        with opened(file.uri, compression="infer") as stream:
            number = 0
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1:
                    _refuse_other_encoding(raw, file)
                whole = len(raw) <= MAX_LINE_BYTES or raw.endswith(b"\n")
                while not raw.endswith(b"\n") and (rest := stream.readline(1 << 20)):
                    if rest.endswith(b"\n"):
                        break
                yield number, raw, whole
    except ConnectionError:
        raise  # of the network: the node is tried again
    except (OSError, EOFError, ZlibError, LZMAError, BadZipFile) as error:  # gzip.BadGzipFile is an OSError
        raise StageError(
            f"{base_name(file)} cannot be read to its end: {error}", where=file.uri, do="Fetch the file again; nothing of it was used."
        ) from None


def _refuse_other_encoding(start: bytes, file: ExternalFile) -> None:
    """Raises StageError for a file in UTF-16 or UTF-32: it has no lines that could be bad records."""
    if found := other_encoding(start):
        raise StageError(
            f"{base_name(file)} is {found} by its byte order mark, not UTF-8.", where=file.uri, do=f"Convert it: iconv -f {found} -t UTF-8."
        )


def _shown(raw: bytes) -> str:
    return raw[: 4 * SHOWN_CHARS].decode("utf-8", "replace").strip()[:SHOWN_CHARS]
