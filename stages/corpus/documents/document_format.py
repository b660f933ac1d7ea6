"""The base class of the formats of users' documents: from a file to one record per document.

To add a format, write one file next to format_json_lines.py and one entry in import_documents.py; CONTRIBUTING.md shows an example.
The importer checks every record, so a format only reads. A record of a file is the same however often the file is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from stages.record.tables.jsonl import base_name

if TYPE_CHECKING:
    from stages.record.contract.declaration import Context, ExternalFile
    from stages.record.tables.jsonl import JsonRecord

FIELDS = ("text", "id", "doc_id", "url", "date", "source", "lang", "lang_score")
"""The fields of a document that the importer uses. Other fields of a record are left out."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
KEPT = "kept."
"""Begins the name of a column that is kept beside the fields of a document (crawl.keep), as in {"kept.author": "author"}."""


class DocumentFormat(ABC):
    """A format of files with documents, recognised by the file's name."""

    patterns: ClassVar[tuple[str, ...]]
    """Patterns of its files, as pathlib's glob reads them ("**/*.jsonl")."""
    looked_for: ClassVar[bool] = True
    """Whether the import looks for such files below a given folder. Not for text, because a folder of data has notes beside it."""

    @abstractmethod
    def records(self, file: ExternalFile, ctx: Context, names: Mapping[str, str] = NO_NAMES) -> Iterator[JsonRecord]:
        """Yields the documents of a file in order, each as a record with its line or row, counted from 1.

        `ctx.drop` reports what cannot be read as a record. A file that cannot be read at all is a RecipeError or a StageError.

        Args:
            file: The file.
            ctx: The stage's context.
            names: Field of a document -> its name in the file, where it is another, and KEPT columns. A record has the names of the file.
        """

    def reads(self, file: ExternalFile) -> bool:
        """Returns whether the file's name fits one of the patterns."""
        return any(fnmatch(base_name(file), pattern.rpartition("/")[2]) for pattern in self.patterns)
