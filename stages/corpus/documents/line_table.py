"""Declares the table of the lines of extract's documents, and reads documents with the marks of their lines.

Guarantee: the table has a row for each row of the documents file, in the same order.
Cost: a row group of documents and of lines in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.corpus.documents.documents import document_shards
from stages.record.contract.side_table import Column, SideTable
from stages.record.tables.parquet import read_batches, read_rows

CHARS, YES = "list<int32>", "list<bool>"
LINES = SideTable(
    "lines", "lines", "a document, with a value for each line of its text that is not empty; null unless extract.engine is visible",
    {
        "doc_id": Column("uuid", "the document"),
        "chars": Column(CHARS, "characters that are neither blank nor list or cell signs"),
        "link_chars": Column(CHARS, "of them in links"),
        "own_chars": Column(CHARS, "of them in links to the page itself"),
        "external_chars": Column(CHARS, "of them in links to other sites and to files"),
        "heading": Column(CHARS, "level of the heading, 1 to 6; 0 for none"),
        "frame": Column(YES, "whether it is in nav, header, footer, aside or an element of such a role"),
        "main": Column(YES, "whether it is in an element main"),
        "link_first": Column(YES, "whether it begins with a link"),
        "code": Column(YES, "whether it is in an element pre"),
    },
)  # fmt: skip


MARKS = tuple(name for name in LINES.columns if name != "doc_id")
"""The marks of a line."""


@dataclass(frozen=True)
class LineFile:
    """A documents file of extract and the file with the marks of its lines; None where the documents came without."""

    documents: Path
    lines: Path | None


def line_files(artifact: Path) -> list[LineFile]:
    """Returns the documents files of an artifact of extract, or of an imported one, which has no marks."""
    marks = artifact / "lines"
    return [LineFile(path, marks / path.name if marks.is_dir() else None) for path in document_shards(artifact)]


def page_marks(
    file: LineFile, columns: Sequence[str], marks: Sequence[str] = MARKS
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yields each document of a file with the marks of its lines, as arrays; None for a document without marks.

    Args:
        file: The file.
        columns: The columns to read of the document.
        marks: The marks to read.
    """
    documents = read_rows(file.documents, columns)
    if file.lines is None:
        yield from ((row, None) for row in documents)
        return
    yield from zip(documents, _marks(file.lines, marks), strict=True)


def _marks(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any] | None]:
    """Yields the marks of each document. Its arrays are parts of those of a row group."""
    for batch in read_batches(path, names):
        ends = [0, *batch.column(0).value_lengths().fill_null(0).to_numpy().cumsum().tolist()]
        values = [column.flatten().to_numpy(zero_copy_only=False) for column in batch.columns]
        given = batch.column(0).is_valid().to_pylist()
        for begin, end, marked in zip(ends[:-1], ends[1:], given, strict=True):
            yield {name: of[begin:end] for name, of in zip(names, values, strict=True)} if marked else None
