"""An HTTP answer as a crawl stored it: head fields, and the body with chunking and compression undone within limits.

Guarantee: pure; never more than `max_bytes` (and a block) of decoded body in memory, however small it came; a header that the body
plainly contradicts is ignored, as crawlers often undo the encoding and keep the header. Source: RFC 9112 (chunks), RFC 9110 (content
codings), lenient where browsers are (bare line feeds, raw deflate, several codings).
"""

from __future__ import annotations

import io
import re
import zlib

STATUS = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})(?!\d)")
FOLD = re.compile(r"\r?\n[ \t]+")
HEAD_END = re.compile(rb"\r?\n\r?\n")
CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\n]*)?\r?\n")
PLAIN = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<")  # what an HTML page begins with, and neither a chunk size nor a compressed stream
GZIP_STARTS, ZLIB_STARTS = b"\x1f\x8b", b"\x78"
RAW_DEFLATE, ANY_ZLIB = -15, 47  # zlib's wbits


class BodyError(ValueError):
    """The body cannot be decoded. `problem`: bad-encoding, too-large, or bomb."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def read_fields(head: bytes) -> dict[str, str]:
    """Field lines behind the first line of a head: name in lower case -> value. The first of several wins; folded lines are joined.

    >>> read_fields(b"WARC/1.0\\r\\nA: 1\\r\\nB: 2\\r\\n  3\\r\\na: 4")
    {'a': '1', 'b': '2 3'}
    """
    text = head.decode("utf-8", "replace")
    if "\n " in text or "\n\t" in text:
        text = FOLD.sub(" ", text)
    fields: dict[str, str] = {}
    for line in text.split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    return fields


def read_answer(block: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """(status, fields, body as stored) of an HTTP answer; None where it does not begin with a status line."""
    status = STATUS.match(block)
    if not status:
        return None
    end = HEAD_END.search(block, status.end())
    head, body = (block[: end.start()], block[end.end() :]) if end else (block, b"")
    return int(status[1]), read_fields(head), body


def content_type(value: str) -> tuple[str, str]:
    """("text/html", "utf-8") of "Text/HTML; charset=UTF-8"."""
    mime, _, parameters = value.lower().partition(";")
    return mime.strip(), parameters.partition("charset=")[2].partition(";")[0].strip().strip("\"'")


def decode_body(body: bytes, content_encoding: str, transfer_encoding: str, max_bytes: int, max_ratio: float) -> bytes:
    """The payload. Raises BodyError where the body is damaged or grows past max_bytes (and past max_ratio times what was read: a bomb).

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
            raise BodyError("bomb" if len(data) > max_ratio * read else "too-large")
        body = data
    return body


def _inflated(body: bytes, coding: str, max_bytes: int) -> tuple[bytes, int]:
    """gzip, zlib or raw deflate undone, one byte past max_bytes at most, and how much of the body that took; the body itself where it
    is plainly not compressed."""
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
            raise BodyError("bad-encoding") from None
        left -= len(parts[-1])
        if not inflate.eof and left > 0:
            raise BodyError("bad-encoding")
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
        raise BodyError("bad-encoding") from None


def _dechunked(body: bytes) -> bytes:
    """The payload of a chunked body; the body itself when it is plainly a page."""
    parts: list[bytes] = []
    at = 0
    while True:
        chunk = CHUNK.match(body, at)
        size = int(chunk[1], 16) if chunk else -1
        if not chunk and not parts and (not body or PLAIN.match(body)):
            return body
        if not chunk or chunk.end() + size > len(body):
            raise BodyError("bad-encoding")
        if size == 0:
            return b"".join(parts)
        parts.append(body[chunk.end() : chunk.end() + size])
        at = chunk.end() + size
        at += 2 if body[at : at + 2] == b"\r\n" else 1 if body[at : at + 1] == b"\n" else 0
