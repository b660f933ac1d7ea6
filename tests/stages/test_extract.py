"""Pages, decisions and ids from sound, foreign and damaged files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stages import crawl
from stages.core.errors import StageError
from stages.core.stage import Artifact
from stages.core.tables import read_rows
from stages.extract import STAGE, fallback_doc_id
from tests.conftest import run_stage
from tests.text.test_warc import member, record


def rows(artifact: Artifact, name: str, shard: int = 0) -> list[dict[str, Any]]:
    return list(read_rows(artifact.path / name / f"{shard:05d}.parquet"))


def extract(files: list[Path], home: Path, workers: int = 1, **config: Any) -> Artifact:
    warc = run_stage(crawl.STAGE, {"warcs": [str(f) for f in files]}, {}, home)
    return run_stage(STAGE, config, {"warc": warc}, home, runtime={"workers": workers})


def page(n: int, body: str = "", head: str = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8") -> bytes:
    text = body or f"<html><body><p>The text of page number {n} in plain words.</p></body></html>"
    return member(record(n, text.encode(), f"{head}\r\n\r\n".encode()))


NOT_FOUND = "HTTP/1.1 404 Not Found\r\nContent-Type: text/html"
XML = "HTTP/1.1 200 OK\r\nContent-Type: application/xml"


def test_real_crawl_every_record_has_one_decision(corpora: Path, tmp_path: Path) -> None:
    files = [corpora / "crawl" / f"CRAWL-2026-0000{n}.warc.gz" for n in (0, 1)]
    found = extract(files, tmp_path)
    decisions = rows(found, "decisions") + rows(found, "decisions", 1)
    documents = rows(found, "documents") + rows(found, "documents", 1)
    assert [(d["warc"], d["ordinal"]) for d in decisions] == sorted((d["warc"], d["ordinal"]) for d in decisions)
    assert len({d["doc_id"] for d in decisions}) == len(decisions)  # also the warcinfo records that both files repeat
    assert found.summary["duplicate_record_ids"] > 0
    kept = [d for d in decisions if d["verdict"] == "kept"]
    assert [d["doc_id"] for d in kept] == [d["doc_id"] for d in documents]
    reasons = Counter(d["reason"] for d in decisions)
    assert set(reasons) == {None, "not-a-page", "revisit", "http-status", "content-type", "no-text"}
    assert found.manifest["books"]["dropped"] == {k: v for k, v in sorted(reasons.items(), key=str) if k}
    assert found.manifest["books"]["chars_out"] == sum(len(d["text"]) for d in documents)
    assert {"en", "de", "fr", "ja"} <= {d["lang"] for d in documents}
    assert all(d["url"].startswith("http://") and d["date"].startswith("2026-") and d["source"] == "web" for d in documents)


def test_workers_change_nothing(corpora: Path, tmp_path: Path) -> None:
    files = sorted((corpora / "crawl" / "real").glob("*wget*.warc.gz"))
    assert len(files) == 2
    one, two = (extract(files, tmp_path / str(n), workers=n) for n in (1, 2))
    assert one.manifest["digest"] == two.manifest["digest"]


def test_broken_file_is_read_to_its_end_and_counted(corpora: Path, tmp_path: Path) -> None:
    found = extract([corpora / "crawl" / "broken.warc.gz"], tmp_path, max_bad_records=50)
    decisions = rows(found, "decisions")
    assert [d["ordinal"] for d in decisions] == list(range(len(decisions)))
    reasons = Counter(d["reason"] for d in decisions if d["reason"])
    assert reasons == {"unreadable": 7, "not-a-page": 3, "bad-http": 2, "bad-encoding": 1, "bad-url": 2, "empty": 1, "truncated": 1}
    bad = [json.loads(line) for line in (found.path / "bad_records.jsonl").read_text().splitlines()]
    assert len(bad) == 11
    assert {"reason", "where", "record"} == set(bad[0])
    texts = {d["url"]: d["text"] for d in rows(found, "documents")}
    assert "debmake" in texts["http://www.debian-docs.example/debmake-doc/html/"]
    assert "fa0" not in texts["http://www.debian-docs.example/apt-doc/guide.it.html/ch1.html"].split()


def test_damage_past_the_recipes_limit_fails_the_stage(tmp_path: Path) -> None:
    file = tmp_path / "f.warc.gz"
    file.write_bytes(page(1) + b"junk between two members" + page(2) + page(3)[:-30])
    with pytest.raises(StageError, match="a record is unreadable") as caught:
        extract([file], tmp_path)
    assert caught.value.where == "f.warc.gz:1"
    assert "extract.max_bad_records" in caught.value.do
    assert len(rows(extract([file], tmp_path, max_bad_records=2), "documents")) == 2


def test_xhtml_and_untyped_pages_are_read(tmp_path: Path) -> None:
    xhtml = '<?xml version="1.0"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><body><p>Served as XML, read all the same.</p></body></html>'
    file = tmp_path / "f.warc.gz"
    file.write_bytes(page(1, xhtml, XML) + page(2, xhtml, "HTTP/1.1 200 OK\r\nServer: none") + page(3, "<rss>feed</rss>", XML))
    found = extract([file], tmp_path)
    assert [d["text"] for d in rows(found, "documents")] == ["Served as XML, read all the same."] * 2
    assert rows(found, "decisions")[2]["reason"] == "content-type"


def test_doc_ids_of_missing_and_repeated_record_ids(tmp_path: Path) -> None:
    no_id = member(record(3, b"<p>A page whose record id is no UUID.</p>").replace(b"urn:uuid:0000", b"urn:uuid:zzzz"))
    first, second = tmp_path / "a.warc.gz", tmp_path / "b.warc.gz"
    first.write_bytes(page(1) + page(2) + page(1) + no_id)
    second.write_bytes(page(2) + page(5))
    found = extract([first, second], tmp_path)
    manifest = json.loads(next(tmp_path.glob("artifacts/crawl/*/manifest.json")).read_text())
    shas = [file["identity"] for file in manifest["external"]["warcs"]]
    named = {n: UUID(f"00000000-0000-4000-8000-{n:012d}") for n in (1, 2, 5)}
    expected = [
        [named[1], named[2], fallback_doc_id(shas[0], 2), fallback_doc_id(shas[0], 3)],
        [fallback_doc_id(shas[1], 0), named[5]],
    ]
    for shard in (0, 1):
        assert [d["doc_id"] for d in rows(found, "documents", shard)] == expected[shard]
        assert [d["doc_id"] for d in rows(found, "decisions", shard)] == expected[shard]


def test_wet_text_is_taken_as_it_stands(corpora: Path, tmp_path: Path) -> None:
    found = extract([corpora / "crawl" / "real" / "whirlwind.warc.wet.gz"], tmp_path / "wet")
    original = extract([corpora / "crawl" / "real" / "whirlwind.warc.gz"], tmp_path / "warc")
    (wet,), (html,) = rows(found, "documents"), rows(original, "documents")
    assert wet["doc_id"] == html["doc_id"]
    assert wet["url"] == html["url"]
    assert wet["text"].startswith("Escopete")


def test_limits_of_size_status_and_text(tmp_path: Path) -> None:
    file = tmp_path / "f.warc.gz"
    file.write_bytes(page(1) + page(2, "<p>" + "long " * 500) + page(3, head=NOT_FOUND) + page(4, "<p>x</p>"))
    found = extract([file], tmp_path, max_page_bytes=1000, min_chars=5)
    assert [d["reason"] for d in rows(found, "decisions")] == [None, "too-large", "http-status", "no-text"]
    assert found.manifest["books"]["chars_dropped"]["too-large"] > 2500
    assert found.manifest["books"]["chars_dropped"]["no-text"] == len("<p>x</p>")


def test_no_text_at_all_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "f.warc.gz"
    file.write_bytes(page(3, head=NOT_FOUND))
    with pytest.raises(StageError, match="No page of the crawl gave any text") as caught:
        extract([file], tmp_path)
    assert "http-status 1" in caught.value.where


def test_a_file_changed_or_gone_after_the_crawl(tmp_path: Path) -> None:
    file = tmp_path / "f.warc.gz"
    file.write_bytes(page(1))
    warc = run_stage(crawl.STAGE, {"warcs": [str(file)]}, {}, tmp_path)
    file.write_bytes(page(1) + page(2))
    with pytest.raises(StageError, match="has changed since the crawl stage read it"):
        run_stage(STAGE, {}, {"warc": warc}, tmp_path)
    altered = bytearray(page(1))
    altered[4] ^= 1  # the gzip header's time stamp: the same length, the same pages
    file.write_bytes(altered)
    with pytest.raises(StageError, match="has changed since the crawl stage read it"):
        run_stage(STAGE, {}, {"warc": warc}, tmp_path)
    file.unlink()
    with pytest.raises(StageError, match="A WARC file of the crawl is gone"):
        run_stage(STAGE, {}, {"warc": warc}, tmp_path)
