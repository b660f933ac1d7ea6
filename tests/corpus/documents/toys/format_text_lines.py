"""A toy: plain text, one document per line. CONTRIBUTING.md shows it as the example of a new format of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stages.corpus.documents.document_format import NO_NAMES, DocumentFormat
from stages.record.contract.declaration import Context, ExternalFile
from stages.record.tables.jsonl import JsonRecord, read_lines


class TextLinesFormat(DocumentFormat):
    """One document per line. Blank lines are skipped."""

    patterns = ("**/*.lines", "**/*.lines.gz")

    def records(self, file: ExternalFile, ctx: Context, names: Mapping[str, str] = NO_NAMES) -> Iterator[JsonRecord]:
        """Yields the lines of a file; see DocumentFormat.records."""
        for number, line in enumerate(read_lines(file), start=1):
            if line.strip():
                yield JsonRecord(file, number, {"text": line.rstrip("\n")})
