"""Bodies of HTTP answers: chunks and compression undone, damage and bombs told."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.text.warc.http_body import BodyError, content_type, decode_body, read_answer, read_fields

RAW = zlib.compressobj(wbits=-15)
RAW_DEFLATE = RAW.compress(b"text") + RAW.flush()


def decode(body: bytes, content: str = "", transfer: str = "", max_bytes: int = 10**6) -> bytes:
    return decode_body(body, content, transfer, max_bytes, 100.0)


@pytest.mark.parametrize(
    ("body", "content", "transfer", "expected"),
    [
        (gzip.compress(b"text"), "gzip", "", b"text"),
        (gzip.compress(b"te") + gzip.compress(b"xt"), "x-gzip", "", b"text"),
        (zlib.compress(b"text"), "deflate", "", b"text"),
        (RAW_DEFLATE, "deflate", "", b"text"),
        (brotli.compress(b"text"), "br", "", b"text"),
        (brotli.compress(gzip.compress(b"text")), "gzip, br", "", b"text"),
        (b"text", "gzip", "", b"text"),
        (b"<p>text", "deflate", "", b"<p>text"),
        (b"\xff\xfftext", "deflate", "", b"\xff\xfftext"),
        (b"<p>text", "br", "", b"<p>text"),
        (b"text", "identity", "", b"text"),
        (b"4\r\ntext\r\n2;x=y\r\n!!\r\n0\r\n\r\n", "", "chunked", b"text!!"),
        (b"0004  \ntext\n0\n\n", "", "Chunked", b"text"),
        (b"<p>not chunked at all", "", "chunked", b"<p>not chunked at all"),
        (b"  \r\n\xef\xbb\xbf<p>not chunked", "", "chunked", b"  \r\n\xef\xbb\xbf<p>not chunked"),
        (b"", "gzip", "chunked", b""),
    ],
)
def test_body_decoding(body: bytes, content: str, transfer: str, expected: bytes) -> None:
    assert decode(body, content, transfer) == expected


@pytest.mark.parametrize(
    ("body", "content", "transfer", "problem"),
    [
        (gzip.compress(b"text" * 99)[:-20], "gzip", "", "bad-encoding"),
        (gzip.compress(b"")[:10] + b"\xff" * 20, "gzip", "", "bad-encoding"),
        (b"\xffno brotli", "br", "", "bad-encoding"),
        (b"4\r\ntext\r\nzz\r\n", "", "chunked", "bad-encoding"),
        (b"zz\r\n<p>text", "", "chunked", "bad-encoding"),
        (b"40\r\ntext", "", "chunked", "bad-encoding"),
        (b"4\r\ntext", "", "chunked", "bad-encoding"),
        (gzip.compress(b"0" * 2_000_000), "gzip", "", "bomb"),
        (brotli.compress(b"0" * 2_000_000), "br", "", "bomb"),
        (brotli.compress(gzip.compress(b"0" * 2_000_000)), "gzip, br", "", "bomb"),
        (gzip.compress(bytes(range(256)) * 4000, 0), "gzip", "", "too-large"),
    ],
)
def test_bodies_that_cannot_be_used(body: bytes, content: str, transfer: str, problem: str) -> None:
    with pytest.raises(BodyError, match=problem) as caught:
        decode(body, content, transfer)
    assert caught.value.problem == problem


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_chunks_are_joined(parts: list[bytes]) -> None:
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    assert decode(chunked, "", "chunked") == b"".join(parts)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "br", "zstd"]), st.sampled_from(["", "chunked"]))
def test_any_bytes_are_decoded_or_refused(body: bytes, content: str, transfer: str) -> None:
    try:
        assert len(decode(body, content, transfer, 1000)) <= 1000
    except BodyError as error:
        assert error.problem in ("bad-encoding", "bomb", "too-large")


def test_answers() -> None:
    assert read_answer(b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\nbody") == (200, {"a": "1"}, b"body")
    assert read_answer(b"HTTP/2 404\n\nbody") == (404, {}, b"body")
    assert read_answer(b"HTTP/1.0 304 Not Modified\r\nA: 1") == (304, {"a": "1"}, b"")
    assert read_answer(b"HTTP/1.1 2000 OK\r\n\r\n") is None
    assert read_answer(b"<html>") is None


def test_fields_of_a_head() -> None:
    assert read_fields(b"first\r\nno field\r\n X\r\nA :  1 \r\nB:\r\n 2\r\na: 3\r\n folded into nothing") == {"a": "1", "b": "2"}


def test_content_types() -> None:
    assert content_type("Text/HTML ; Charset='UTF-8'; x=y") == ("text/html", "utf-8")
    assert content_type("") == ("", "")
