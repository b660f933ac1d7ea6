"""JSON Lines files as documents, plain or gzipped: one object per line.

Source: jsonlines.org.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stages.corpus.documents.document_format import NO_NAMES, DocumentFormat
from stages.record.contract.declaration import Context, ExternalFile
from stages.record.tables.jsonl import JsonRecord, read_records


class JsonLinesFormat(DocumentFormat):
    """One JSON object per line. Blank lines are skipped."""

    patterns = ("**/*.jsonl", "**/*.jsonl.gz")

    def records(self, file: ExternalFile, ctx: Context, names: Mapping[str, str] = NO_NAMES) -> Iterator[JsonRecord]:
        """Yields the objects of a file; see DocumentFormat.records."""
        yield from read_records((file,), ctx)
