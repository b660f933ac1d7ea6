"""Parses an HTTP response as a crawl stored it: header fields, and the body with chunking and compression undone within limits.

Guarantee: pure. A decoded body never takes more than `max_bytes` (and a block) of memory, however small its compressed form. A header that
clearly contradicts the body is ignored, because crawlers often undo the encoding and keep the header.
Source: RFC 9112 (chunks), RFC 9110 (content codings). Lenient where browsers are: bare line feeds, raw deflate, several codings.
"""

from __future__ import annotations

import io
import re
import zlib

from stages.text.warc.page_reasons import PageReason

STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})(?!\d)")
FOLD = re.compile(r"\r?\n[ \t]+")
HEAD_END = re.compile(rb"\r?\n\r?\n")
EACH_COUNTS = "x-robots-tag"  # each field of this name can be addressed to another crawler
CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\n]*)?\r?\n")
PLAIN = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<")  # start of an HTML page; no chunk size or compressed stream starts like this
GZIP_STARTS, ZLIB_STARTS = b"\x1f\x8b", b"\x78"
RAW_DEFLATE, ANY_ZLIB = -15, 47  # zlib's wbits


class BodyError(ValueError):
    """The body cannot be decoded. `problem`: BAD_ENCODING, TOO_LARGE or BOMB."""

    def __init__(self, problem: PageReason) -> None:
        """Takes the problem, which is the message too."""
        super().__init__(problem)
        self.problem = problem


def read_fields(head: bytes) -> dict[str, str]:
    r"""Returns the field lines after the first line of a head: name in lower case -> value.

    The first of several equal names wins, except that every X-Robots-Tag is a line of one value. Folded lines are joined.

    >>> read_fields(b"WARC/1.0\r\nA: 1\r\nB: 2\r\n  3\r\na: 4")
    {'a': '1', 'b': '2 3'}
    """
    text = head.decode("utf-8", "replace")
    if "\n " in text or "\n\t" in text:
        text = FOLD.sub(" ", text)
    fields: dict[str, str] = {}
    for line in text.split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            name, value = name.strip().lower(), value.strip()
            fields[name] = f"{fields[name]}\n{value}" if name == EACH_COUNTS and name in fields else fields.get(name, value)
    return fields


def read_answer(block: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """Returns (status, fields, body as stored) of an HTTP response; None if it does not begin with a status line."""
    status = STATUS.match(block)
    if not status:
        return None
    end = HEAD_END.search(block, status.end())
    head, body = (block[: end.start()], block[end.end() :]) if end else (block, b"")
    return int(status[1]), read_fields(head), body


def content_type(value: str) -> tuple[str, str]:
    """Returns ("text/html", "utf-8") for "Text/HTML; charset=UTF-8"."""
    mime, _, parameters = value.lower().partition(";")
    return mime.strip(), parameters.partition("charset=")[2].partition(";")[0].strip().strip("\"'")


def decode_body(body: bytes, content_encoding: str, transfer_encoding: str, max_bytes: int, max_ratio: float) -> bytes:
    """Returns the decoded payload of a body.

    Args:
        body: Body as stored.
        content_encoding: Value of the header Content-Encoding.
        transfer_encoding: Value of the header Transfer-Encoding.
        max_bytes: Largest decoded size, in bytes.
        max_ratio: A body that is too large is a bomb if it also grows past this multiple of the bytes that were read.

    Raises:
        BodyError: The body is damaged or its decoded size exceeds max_bytes.

    >>> decode_body(b"plain", "gzip", "", 100, 100)
    b'plain'
    """
    if "chunked" in transfer_encoding.lower():
        body = _dechunked(body)
    for coding in reversed([part.strip() for part in content_encoding.lower().split(",")]):
        if coding in ("gzip", "x-gzip", "deflate"):
            data, read = _inflated(body, coding, max_bytes)
        elif coding in ("br", "zstd"):
            data, read = _unpacked(body, coding, max_bytes)
        else:
            continue
        if len(data) > max_bytes:
            raise BodyError(PageReason.BOMB if len(data) > max_ratio * read else PageReason.TOO_LARGE)
        body = data
    return body


def _inflated(body: bytes, coding: str, max_bytes: int) -> tuple[bytes, int]:
    """Returns (the body after gzip, zlib or raw deflate is undone, the number of bytes that were read).

    The result is at most max_bytes + 1 bytes long. A body that is clearly not compressed is returned as it is.

    Raises:
        BodyError: The compressed stream is damaged or ends early.
    """
    if coding == "deflate" and body and body[:1] != ZLIB_STARTS and not body.startswith(GZIP_STARTS):
        if PLAIN.match(body):
            return body, len(body)
        wbits = RAW_DEFLATE
    elif body.startswith(GZIP_STARTS) or body[:1] == ZLIB_STARTS:
        wbits = ANY_ZLIB
    else:
        return body, len(body)
    parts, left, rest = [], max_bytes + 1, body
    while rest and left > 0:
        inflate = zlib.decompressobj(wbits=wbits)
        try:
            parts.append(inflate.decompress(rest, left))
        except zlib.error:
            if wbits == RAW_DEFLATE and not parts:
                return body, len(body)
            raise BodyError(PageReason.BAD_ENCODING) from None
        left -= len(parts[-1])
        if not inflate.eof and left > 0:
            raise BodyError(PageReason.BAD_ENCODING)
        rest = inflate.unused_data if inflate.unused_data.startswith(GZIP_STARTS) else inflate.unconsumed_tail if left <= 0 else b""
    return b"".join(parts), len(body) - len(rest)


def _unpacked(body: bytes, coding: str, max_bytes: int) -> tuple[bytes, int]:
    from fastwarc.stream_io import BrotliReader, ZstdReader

    source = io.BytesIO(body)
    try:
        return (BrotliReader if coding == "br" else ZstdReader)(source).read(max_bytes + 1), source.tell()
    except OSError:
        if PLAIN.match(body):
            return body, len(body)
        raise BodyError(PageReason.BAD_ENCODING) from None


def _dechunked(body: bytes) -> bytes:
    """Returns the payload of a chunked body; the body itself if it is clearly a page.

    Raises:
        BodyError: A chunk is malformed, or the body ends early.
    """
    parts: list[bytes] = []
    at = 0
    while True:
        chunk = CHUNK.match(body, at)
        size = int(chunk[1], 16) if chunk else -1
        if not chunk and not parts and (not body or PLAIN.match(body)):
            return body
        if not chunk or chunk.end() + size > len(body):
            raise BodyError(PageReason.BAD_ENCODING)
        if size == 0:
            return b"".join(parts)
        parts.append(body[chunk.end() : chunk.end() + size])
        at = chunk.end() + size
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0
