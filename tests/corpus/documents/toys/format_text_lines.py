"""A toy: plain text, one document per line. CONTRIBUTING.md shows it as the example of a new format of documents."""

from __future__ import annotations

from collections.abc import Iterator

from stages.corpus.documents.document_format import DocumentFormat
from stages.record.contract.declaration import Context, ExternalFile
from stages.record.tables.jsonl import JsonRecord, read_lines


class TextLinesFormat(DocumentFormat):
    """One document per line. Blank lines are skipped."""

    patterns = ("**/*.txt", "**/*.txt.gz")

    def records(self, file: ExternalFile, ctx: Context) -> Iterator[JsonRecord]:
        """Yields the lines of a file; see DocumentFormat.records."""
        for number, line in enumerate(read_lines(file), start=1):
            if line.strip():
                yield JsonRecord(file, number, {"text": line.rstrip("\n")})
