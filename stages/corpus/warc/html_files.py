"""Reads a file of HTML, such as a page that a browser saved, as the record of a crawl: one page per file.

Its URL is file://SOURCE/NAME?sha256=…, with the first digits of the file's checksum, because the pages of a folder and of its subfolders may
share a name. The source stands where the host is, so that the pages of a source are compared with each other as those of a web site are.
Guarantee: the record follows from the file's name, source and content. A page past the limit of size, compressed or not, is not read
further and is `too_large`.
Cost: the page in memory, at most the limit.
"""

from __future__ import annotations

import gzip
import zlib
from typing import BinaryIO
from urllib.parse import quote

from stages.corpus.warc.page_reasons import PageReason
from stages.corpus.warc.records import WarcRecord

ENDINGS = (".html", ".htm", ".html.gz", ".htm.gz")
FILE = "file"
"""The type of the record, which no WARC file has: a page that has no web address."""


def holds_html(name: str) -> bool:
    """Returns whether a file of this name is read as a page."""
    return name.lower().endswith(ENDINGS)


def html_record(stream: BinaryIO, name: str, source: str, identity: str, max_bytes: int) -> WarcRecord:
    """Returns the page of a file as a record.

    Args:
        stream: The file's bytes.
        name: Its name without folders.
        source: Name of its source.
        identity: Its content, such as "sha256:…".
        max_bytes: Longest page that is read (bytes).
    """
    url = f"file://{quote(source)}/{quote(name)}?{quote(identity.replace(':', '='), safe='=')[:19]}"
    problem = ""
    try:
        body = (gzip.GzipFile(fileobj=stream) if name.lower().endswith(".gz") else stream).read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        body, problem = b"", PageReason.UNREADABLE
    size_bytes = len(body)
    if size_bytes > max_bytes:
        body, problem = b"", PageReason.TOO_LARGE
    return WarcRecord(0, 0, FILE, url=url, mime="text/html", size_bytes=size_bytes, body=body, problem=problem)
