"""CSV and TSV files as documents: one document per row. The first row names the columns.

Guarantee: rows are read as RFC 4180 says, with quoted fields that hold line breaks. A row with another number of fields than the header, or
with a quote that is not closed, is a bad record. In a .csv file without a comma in its header, semicolons separate the fields.
Cost: one row in memory.
Source: RFC 4180; Python's csv module.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping

from stages.corpus.documents.document_format import NO_NAMES, DocumentFormat
from stages.record.contract.declaration import Context, ExternalFile
from stages.record.contract.errors import RecipeError
from stages.record.tables.jsonl import MAX_LINE_BYTES, JsonRecord, base_name, place, read_lines


class CsvFormat(DocumentFormat):
    """One document per row, in UTF-8."""

    patterns = ("**/*.csv", "**/*.csv.gz", "**/*.tsv", "**/*.tsv.gz")
    looked_for = False

    def records(self, file: ExternalFile, ctx: Context, names: Mapping[str, str] = NO_NAMES) -> Iterator[JsonRecord]:
        """Yields the rows of a file, counted from 1 after the header; see DocumentFormat.records.

        Yields:
            One record per row. An empty field is left out.

        Raises:
            RecipeError: The header names a column twice, or there is none, or none holds the text.
        """
        csv.field_size_limit(MAX_LINE_BYTES)  # of this process; the default of 131,072 characters is less than a long document has
        lines = read_lines(file)
        first = next(lines, "").removeprefix("\ufeff")
        header = next(csv.reader([first], delimiter=(mark := _delimiter(file, first))), [])
        if twice := next((name for name in header if header.count(name) > 1), ""):
            raise RecipeError(f"{base_name(file)} has two columns {twice!r}.", where=f"{file.uri}, its first line", do="Keep one of them.")
        if header and (text := names.get("text", "text")) not in header:
            raise RecipeError(
                f"{base_name(file)} has no column {text!r}; it has {', '.join(map(repr, header[:20]))}.", where=f"{file.uri}, its first line",
                do="Name the column that holds the text in the recipe: crawl.fields={SOURCE: {text: COLUMN}}.",
            )  # fmt: skip
        if not header:
            raise RecipeError(f"{base_name(file)} has no header.", where=file.uri, do="Name the columns in its first line.")
        rows, number = csv.reader(lines, delimiter=mark, strict=True), 0
        while True:
            number += 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                ctx.drop(f"the row cannot be read: {error}", place(file, number), "")
                continue
            if row is None:
                return
            if len(row) == len(header):
                yield JsonRecord(file, number, {name: value for name, value in zip(header, row, strict=True) if value})
            elif row:
                ctx.drop(f"the row has {len(row)} fields, the header {len(header)}", place(file, number), mark.join(row)[:2000])


def _delimiter(file: ExternalFile, header: str) -> str:
    """Returns the character between two fields."""
    if base_name(file).removesuffix(".gz").endswith(".tsv"):
        return "\t"
    return ";" if ";" in header and "," not in header else ","
