"""Reading WARC files: sound, foreign, damaged, and cut at every byte."""

from __future__ import annotations

import gzip
import json
import zlib
from io import BytesIO
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from stages.text.warc import NotWarcError, Record, check_warc, decode_body, parse_uuid, read_records

LIMIT = 10**7


def record(
    n: int, body: bytes = b"<p>hello</p>", head: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8\r\n\r\n"
) -> bytes:
    block = head + body
    return (
        b"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.b/%d\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
        b"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-%012d>\r\nContent-Type: application/http; msgtype=response\r\n"
        b"Content-Length: %d\r\n\r\n" % (n, n, len(block))
    ) + block + b"\r\n\r\n"  # fmt: skip


def member(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def read(data: bytes, limit: int = LIMIT) -> list[Record]:
    return list(read_records(BytesIO(data), limit))


@pytest.mark.parametrize("pack", [member, bytes])
def test_fields_of_a_response(pack: object) -> None:
    (found,) = read(pack(record(7)))
    assert (found.ordinal, found.offset, found.type, found.status, found.problem) == (0, 0, "response", 200, "")
    assert (found.url, found.date) == ("http://a.b/7", "2026-01-01T00:00:00Z")
    assert (found.mime, found.charset, found.body) == ("text/html", "utf-8", b"<p>hello</p>")
    assert found.record_id == UUID("00000000-0000-4000-8000-000000000007")


def test_real_crawl_is_read_as_warcio_reads_it(corpora: Path) -> None:
    path = corpora / "crawl" / "CRAWL-2026-00003.warc.gz"
    with path.open("rb") as stream:
        expected = [
            (r.rec_type, r.rec_headers.get_header("WARC-Record-ID"), r.content_stream().read() if r.rec_type == "response" else b"")
            for r in ArchiveIterator(stream)
        ]
    with path.open("rb") as stream:
        found = list(read_records(stream, LIMIT))
    assert [r.ordinal for r in found] == list(range(len(expected)))
    assert [(r.type, f"<urn:uuid:{r.record_id}>", r.body) for r in found] == [(kind, own.lower(), body) for kind, own, body in expected]


def test_broken_file_is_read_to_its_end(corpora: Path) -> None:
    """Every record that must be readable is read; each planted defect is read or accounted for, and none stops the file."""
    with (corpora / "crawl" / "broken.warc.gz").open("rb") as stream:
        found = list(read_records(stream, LIMIT))
    sound = {r.url for r in found if not r.problem}
    expected = [json.loads(line) for line in (corpora / "crawl" / "broken.expected.jsonl").read_text().splitlines()]
    must = [row["url"] for row in expected if row["expect"].startswith("page kept") and "or" not in row["expect"].split()]
    assert len(must) > 20
    assert [url for url in must if url not in sound] == []
    problems = {r.url or r.offset: r.problem for r in found if r.problem}
    assert problems["http://www.debian-docs.example/apt-doc/guide.de.html/index.html"] == "bad-encoding"
    assert problems["http://www.debian-docs.example/developers-reference/scope.html"] == "truncated"
    assert problems["http://www.debian-docs.example/apt-doc/guide.it.html/"] == "bad-http"
    assert list(problems.values()).count("unreadable") == 7  # a record without Content-Length, and six stretches


def test_truncated_file_reports_its_cut(corpora: Path) -> None:
    with (corpora / "crawl" / "truncated.warc.gz").open("rb") as stream:
        found = list(read_records(stream, LIMIT))
    assert len(found) == 195
    assert [r.problem for r in found if r.problem] == ["truncated"]


@pytest.mark.parametrize(
    "name", ["warcio-example.warc.gz", "warcio-example-wget-bad-target-uri.warc.gz", "warcio-example-iana.org-chunked.warc"]
)
def test_foreign_files(corpora: Path, name: str) -> None:
    with (corpora / "crawl" / "quirks" / name).open("rb") as stream:
        check_warc(stream, name)
        found = list(read_records(stream, LIMIT))
    assert not [r for r in found if r.problem]
    (page,) = [r for r in found if r.type == "response"]
    assert page.url in ("http://example.com/", "http://www.iana.org/")  # without wget's angle brackets
    assert page.body.lstrip().startswith(b"<!doctype html>")  # chunk sizes and gzip gone


def test_wet_conversion_refers_to_its_page(corpora: Path) -> None:
    with (corpora / "crawl" / "real" / "whirlwind.warc.wet.gz").open("rb") as stream:
        text = [r for r in read_records(stream, LIMIT) if r.type == "conversion"][0]
    with (corpora / "crawl" / "real" / "whirlwind.warc.gz").open("rb") as stream:
        page = [r for r in read_records(stream, LIMIT) if r.type == "response"][0]
    assert text.refers_to == page.record_id
    assert text.url == page.url
    assert "Escopete" in text.body.decode()


@pytest.mark.parametrize("at", range(1, 400, 7))
def test_a_file_cut_anywhere_never_looks_whole(at: int) -> None:
    whole = member(record(1)) + member(record(2, b"<p>second page</p>" * 9))
    first = len(member(record(1)))  # its last eight bytes are gzip's checksum: without them the record is whole, the file is not
    at = min(at, len(whole) - 1)
    found = read(whole[:at])
    assert [r.url for r in found if not r.problem] == ["http://a.b/1"] * (at >= first - 8)
    if at != first:
        assert [r for r in found if r.problem]


def test_damage_in_the_middle_costs_only_the_damaged_record() -> None:
    good = [member(record(n)) for n in range(5)]
    bad = bytearray(member(record(9, b"x" * 500)))
    bad[40:60] = b"\0" * 20
    for junk in (bytes(bad), b"junk between members" * 10, member(record(9))[:-9] + b"\1" * 9):
        found = read(good[0] + good[1] + junk + good[2] + good[3])
        assert [r.url[-1] for r in found if r.type == "response" and not r.problem and not r.url.endswith("9")] == list("0123")
        assert [r.problem for r in found if r.problem] == ["unreadable"]
        assert [r.ordinal for r in found] == list(range(len(found)))


def test_damaged_head_of_an_uncompressed_record() -> None:
    data = record(1) + b"garbage instead of a head\r\n\r\n" + record(2)
    found = read(data)
    assert [(r.url[-1:], r.problem) for r in found] == [("1", ""), ("", "unreadable"), ("2", "")]


def test_too_large_pages_are_not_read() -> None:
    small, large = read(member(record(1)) + member(record(2, b"x" * 5000)), limit=1000)
    assert (small.problem, large.problem, large.body) == ("", "too-large", b"")
    assert large.size_bytes > 5000


@pytest.mark.parametrize(
    ("body", "content", "transfer", "expected"),
    [
        (gzip.compress(b"text"), "gzip", "", b"text"),
        (zlib.compress(b"text"), "deflate", "", b"text"),
        (b"text", "gzip", "", b"text"),
        (b"4\r\ntext\r\n2;x=y\r\n!!\r\n0\r\n\r\n", "", "chunked", b"text!!"),
        (b"not chunked at all", "", "chunked", b"not chunked at all"),
        (b"text", "identity", "", b"text"),
        (b"text", "br", "", b"text"),
    ],
)
def test_body_decoding(body: bytes, content: str, transfer: str, expected: bytes) -> None:
    assert decode_body(body, content, transfer) == expected


@pytest.mark.parametrize(
    ("body", "content", "transfer", "message"),
    [
        (gzip.compress(b"text" * 99)[:-20], "gzip", "", "cut short"),
        (gzip.compress(b"")[:10] + b"\xff" * 20, "gzip", "", "compressed body is damaged"),
        (b"4\r\ntext\r\nzz\r\n", "", "chunked", "chunked body is damaged"),
    ],
)
def test_damaged_bodies(body: bytes, content: str, transfer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_body(body, content, transfer)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f.warc is empty"),
        (b"hello", "f.warc is not a WARC file: it begins with b'hello'"),
        (b"\x1f\x8b\x08hello", "cannot be decompressed"),
        (gzip.compress(b"hello"), "is not a WARC file: it begins with b'hello'"),
        (gzip.compress(b"filedesc://x.arc.gz 0.0.0.0"), "f.warc is an ARC file"),
        (b"filedesc://x.arc 0.0.0.0", "f.warc is an ARC file"),
    ],
)
def test_what_is_no_warc_says_what_it_is(data: bytes, message: str) -> None:
    with pytest.raises(NotWarcError, match=message.replace("(", "\\(")):
        check_warc(BytesIO(data), "f.warc")


@given(st.uuids())
def test_record_ids(value: UUID) -> None:
    assert parse_uuid(f"<urn:uuid:{value}>") == parse_uuid(str(value).upper()) == value


@pytest.mark.parametrize("text", [None, "", "<urn:uuid:1>", "http://x/1", "0" * 32, "z" * 36])
def test_no_record_id(text: str | None) -> None:
    assert parse_uuid(text) is None
