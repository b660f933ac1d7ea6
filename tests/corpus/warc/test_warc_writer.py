"""What we write, warcio reads and verifies."""

from __future__ import annotations

from io import BytesIO
from uuid import UUID

from warcio.archiveiterator import ArchiveIterator

from stages.corpus.warc.capture import Capture
from stages.corpus.warc.framing import WarcLimits
from stages.corpus.warc.records import read_records
from stages.corpus.warc.warc_writer import file_number, open_warc, payload_digest, response_id, write_capture

PAGE = Capture(
    "http://a.b/page?x=1", "fetched", 200, "OK", "text/html", "GET /page?x=1 HTTP/1.1", (("Host", "a.b"), ("User-Agent", "t")),
    (("Content-Type", "text/html; charset=utf-8"), ("Transfer-Encoding", "chunked")), "<p>Grüße</p>".encode(),
)  # fmt: skip
DATE = "2026-01-02T03:04:05Z"


def written(*captures: Capture) -> bytes:
    stream = BytesIO()
    writer = open_warc(stream, "warc/00000.warc.gz", DATE, {"software": "loam"})
    for capture in captures:
        write_capture(writer, capture, DATE, 0)
    return stream.getvalue()


def test_warcio_reads_every_record_and_its_digests_hold() -> None:
    records = []
    for record in ArchiveIterator(BytesIO(written(PAGE)), check_digests="raise"):
        records.append((record.rec_type, record.rec_headers.get_header("WARC-Target-URI"), record.content_stream().read()))
        if record.rec_type == "response":
            assert record.rec_headers.get_header("WARC-Payload-Digest") == payload_digest(PAGE.body)
            assert record.http_headers.get_header("X-Crawl-Transfer-Encoding") == "chunked"
            assert record.rec_headers.get_header("WARC-Date") == DATE
        if record.rec_type == "request":
            assert record.http_headers.get_header("User-Agent") == "t"
    assert [kind for kind, _, _ in records] == ["warcinfo", "response", "request"]
    assert records[1][1:] == ("http://a.b/page?x=1", PAGE.body)


def test_one_gzip_member_per_record_and_same_bytes_again() -> None:
    data = written(PAGE, PAGE)
    assert data == written(PAGE, PAGE)
    offsets = [record.offset for record in read_records(BytesIO(data), WarcLimits(10**6, 100.0))]
    assert all(data[offset : offset + 3] == b"\x1f\x8b\x08" for offset in offsets)
    assert len(set(offsets)) == 5


def test_response_id_is_a_function_of_url_payload_and_ordinal() -> None:
    ids = {response_id(url, digest, ordinal) for url in "ab" for digest in "xy" for ordinal in (0, 1)}
    assert len(ids) == 8
    assert response_id("a", "x", 0) == response_id("a", "x", 0)
    (own,) = [r.record_id for r in read_records(BytesIO(written(PAGE)), WarcLimits(10**6, 100.0)) if r.type == "response"]
    assert own == response_id(PAGE.url, payload_digest(PAGE.body), 0)
    assert isinstance(own, UUID)


def test_cut_pages_say_so() -> None:
    cut = Capture(**{**vars(PAGE), "cut": True})
    headers = [r.rec_headers for r in ArchiveIterator(BytesIO(written(cut))) if r.rec_type == "response"]
    assert headers[0].get_header("WARC-Truncated") == "length"


def test_file_number_spreads_urls() -> None:
    counts = [0] * 4
    for i in range(400):
        counts[file_number(f"http://a.b/{i}", 4)] += 1
    assert min(counts) > 70
