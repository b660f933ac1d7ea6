"""A crawl's journal: what was answered before a kill is there after it, a torn line is not."""

from __future__ import annotations

from pathlib import Path

from stages.corpus.crawl.journal import Journal
from stages.corpus.warc.capture import Capture


def page(url: str, body: bytes) -> Capture:
    return Capture(url, "fetched", 200, "OK", "text/html", "GET / HTTP/1.1", (("Host", "a"),), (("X", "é"), ("X", "2")), body, cut=True)


def test_answers_come_back_in_their_order_and_once(tmp_path: Path) -> None:
    first, second, other = page("http://a/", b"\x00\xff"), page("http://a/", b"later"), page("http://b/", b"")
    journal = Journal(tmp_path / "j", "2026-01-01T00:00:00Z")
    for capture in (first, other, second, Capture("http://c/", "failed", note="ConnectError")):
        assert journal.take(capture.url) is None
        journal.add(capture)
    journal.close()
    again = Journal(tmp_path / "j", "2026-02-02T00:00:00Z")
    assert again.date == "2026-01-01T00:00:00Z"
    assert [again.take(url) for url in ("http://a/", "http://a/", "http://a/", "http://b/", "http://c/")] == [
        first,
        second,
        None,
        other,
        None,
    ]


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", "2026-01-01T00:00:00Z")
    journal.add(page("http://a/", b"one"))
    whole = (tmp_path / "j").stat().st_size
    journal.add(page("http://b/", b"two"))
    journal.close()
    for size in range(whole, (tmp_path / "j").stat().st_size):
        (tmp_path / "k").write_bytes((tmp_path / "j").read_bytes()[:size])
        torn = Journal(tmp_path / "k", "")
        assert torn.take("http://a/") == page("http://a/", b"one") and torn.take("http://b/") is None
        torn.add(page("http://c/", b"three"))
        torn.close()
        assert Journal(tmp_path / "k", "").take("http://c/") == page("http://c/", b"three")
    (tmp_path / "k").write_bytes((tmp_path / "j").read_bytes()[:5])
    assert Journal(tmp_path / "k", "a new start").date == "a new start"
