"""Reading JSON Lines files, plain or gzipped, local or remote, one record at a time with its line number.

Guarantee: every line is either yielded, blank, or handed to `ctx.drop` with "file:line" (the recipe's limit decides whether
the stage goes on); a file that cannot be read at all is a StageError. Cost: one line in memory. Source: jsonlines.org.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

from stages.core.errors import RecipeError, StageError
from stages.core.remote import opened
from stages.core.stage import Books

if TYPE_CHECKING:
    from stages.core.stage import Context, ExternalFile

SHOWN_CHARS = 2000


@dataclass(frozen=True)
class Record:
    """One JSON object of a file. where: "file.jsonl:12" (no folders, which differ between machines)."""

    file: ExternalFile
    line: int
    value: dict[str, Any]

    @property
    def where(self) -> str:
        return place(self.file, self.line)

    @property
    def doc_id(self) -> UUID:
        """uuid5 of the file's sha256 and the line (DESIGN: the identity of a chat or preference record)."""
        return uuid5(NAMESPACE_OID, f"{self.file.sha256}:{self.line}")

    @property
    def source(self) -> str:
        """The record's own field "source", else the file's name up to its first dot."""
        named = self.value.get("source")
        return named if isinstance(named, str) and named else base_name(self.file).partition(".")[0]

    def text(self) -> str:
        """The record as one line of JSON, cut for showing."""
        return json.dumps(self.value, ensure_ascii=False, default=str)[:SHOWN_CHARS]  # a Parquet row may hold bytes or a decimal


def read_records(files: Sequence[ExternalFile], ctx: Context) -> Iterator[Record]:
    """The objects of JSONL files in the order of `files`; lines count from 1, blank lines are passed over."""
    for file in files:
        for number, raw in enumerate(_lines(file), start=1):
            if not raw.strip():
                continue
            try:
                value = json.loads(raw)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                ctx.drop(f"the line is not JSON ({_reason(error)})", place(file, number), _shown(raw))
                continue
            if isinstance(value, dict):
                yield Record(file, number, value)
            else:
                ctx.drop("the line is not a JSON object", place(file, number), _shown(raw))


def read_lines(file: ExternalFile) -> Iterator[str]:
    """The lines of a text file, plain or gzipped. Raises StageError where one is not UTF-8."""
    for number, raw in enumerate(_lines(file), start=1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            raise StageError("The line is not UTF-8.", where=place(file, number), do="Convert the file.") from None


def counting(ctx: Context) -> tuple[Context, list[str]]:
    """The same context, and a list to which every `drop` adds its place: the bad records, for the books."""
    bad: list[str] = []

    def drop(reason: str, where: str, record: str) -> None:
        bad.append(where)
        ctx.drop(reason, where, record)

    return replace(ctx, drop=drop), bad


def decision_books(unit: str, decisions: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], bad: int) -> Books:
    """Books over rows of verdict and reason. sizes: characters by reason ("" = kept); bad records count without characters."""
    dropped = {reason: sum(d["reason"] == reason for d in decisions) for reason in sorted(sizes) if reason}
    if bad:
        dropped["bad record"] = bad
    return Books(
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
    except pa.ArrowInvalid as error:
        raise RecipeError(f"{base_name(file)} is not a Parquet file: {error}", where=file.uri, do="Fetch or write it again.") from None


def place(file: ExternalFile, line: int) -> str:
    """file name:line, for messages and bad_records.jsonl."""
    return f"{base_name(file)}:{line}"


def base_name(file: ExternalFile) -> str:
    """The last part of a file's path or URI."""
    return file.uri.rstrip("/").rpartition("/")[2]


def _lines(file: ExternalFile) -> Iterator[bytes]:
    import zlib

    try:
        with opened(file.uri, compression="infer") as stream:
            yield from stream
    except ConnectionError:
        raise  # of the network: the node is tried again
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise StageError(
            f"{base_name(file)} cannot be read to its end: {error}", where=file.uri, do="Fetch the file again; nothing of it was used."
        ) from None


def _reason(error: ValueError) -> str:
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "not UTF-8"


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip()[:SHOWN_CHARS]
