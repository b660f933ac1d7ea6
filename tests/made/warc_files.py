"""WARC files made for the tests: a crawl in four files, one damaged in every known way, odd ones as other writers leave them.

Written byte by byte and not with the project's writer, so that the reader is checked against something else. Guarantee: the same pages give
the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid5

from tests.made.prose import paragraphs
from tests.made.web_pages import Page, all_pages, written

SPACE = UUID("6c6f616d-0000-4000-8000-000000000000")
SHARDS = 4
DATE = "2026-03-01T12:00:00Z"
PHRASES = {200: "OK", 301: "Moved Permanently", 404: "Not Found", 410: "Gone"}
INFO = b"software: made by hand for tests\r\nformat: WARC File Format 1.0\r\n"
TYPES = {"warcinfo": "application/warc-fields", "request": "application/http; msgtype=request", "conversion": "text/plain",
         "response": "application/http; msgtype=response", "revisit": "application/http; msgtype=response"}  # fmt: skip


def member(data: bytes) -> bytes:
    """A gzip member."""
    return gzip.compress(data, mtime=0)


def digest(data: bytes) -> str:
    return "sha1:" + base64.b32encode(hashlib.sha1(data).digest()).decode()


def head(kind: str, url: str, record_id: UUID, **fields: str) -> dict[str, str]:
    """The header fields of a record, without its length. An empty value in `fields` leaves a field out."""
    found = {"WARC-Type": kind, "WARC-Target-URI": url, "WARC-Date": DATE, "WARC-Record-ID": f"<urn:uuid:{record_id}>",
             "Content-Type": TYPES.get(kind, "application/octet-stream")}  # fmt: skip
    found |= {name.replace("_", "-"): value for name, value in fields.items()}
    return {name: value for name, value in found.items() if value}


def record(fields: dict[str, str], block: bytes, length: int | None = None, version: str = "WARC/1.0") -> bytes:
    """A record as it stands in a file. length: what it claims; negative leaves the field out."""
    length = len(block) if length is None else length
    lines = [version, *(f"{name}: {value}" for name, value in fields.items()), *([f"Content-Length: {length}"] if length >= 0 else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


def http(page: Page, body: bytes | None = None, **fields: str) -> bytes:
    """The answer as a server sends it."""
    body = page.body if body is None else body
    given = {"Server": "made", "Content-Type": page.content_type, "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in fields.items()}
    lines = [f"HTTP/1.1 {page.status} {PHRASES[page.status]}", *(f"{name}: {value}" for name, value in given.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def id_of(page: Page, kind: str = "response") -> UUID:
    return uuid5(SPACE, f"{kind} {page.url}")


def response(page: Page, body: bytes | None = None, length: int | None = None, fields: dict[str, str] | None = None, **sent: str) -> bytes:
    """A response record. fields: of its head, where they differ; sent: header fields of the answer."""
    block = http(page, body, **sent)
    given = head("response", page.url, id_of(page), WARC_Payload_Digest=digest(page.body)) | (fields or {})
    return record({name: value for name, value in given.items() if value}, block, length)


def asked(page: Page) -> bytes:
    host, _, path = page.url.removeprefix("http://").partition("/")
    return record(head("request", page.url, id_of(page, "request")), f"GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def again(page: Page) -> bytes:
    """A revisit record: the page was the same when it was asked for once more."""
    fields = head("revisit", page.url, id_of(page, "revisit"), WARC_Refers_To=f"<urn:uuid:{id_of(page)}>",
                  WARC_Profile="http://netpreserve.org/warc/1.0/revisit/identical-payload-digest", WARC_Payload_Digest=digest(page.body))  # fmt: skip
    return record(fields, http(page, b"", Content_Length=""))


def information() -> bytes:
    """The record that every file of one crawl begins with, its id included."""
    return member(record(head("warcinfo", "", uuid5(SPACE, "warcinfo")), INFO))


def write_crawl(folder: Path) -> None:
    """CRAWL-2026-0000N.warc.gz: pages by the hash of their URL, as requests and responses; truth.json says what is in them."""
    shards = [[information()] for _ in range(SHARDS)]
    pages = all_pages()
    for page in pages:
        shard = shards[hashlib.sha256(page.url.encode()).digest()[0] % SHARDS]
        shard += [member(asked(page)), member(response(page))]
        if page.language == "es":
            shard.append(member(again(page)))
    for number, members in enumerate(shards):
        (folder / f"CRAWL-2026-{number:05d}.warc.gz").write_bytes(b"".join(members))
    cut = len(shards[0]) * 2 // 3
    (folder / "truncated.warc.gz").write_bytes(b"".join(shards[0][:cut]) + shards[0][cut][: len(shards[0][cut]) // 2])
    with_text = [p for p in pages if p.status == 200 and "html" in p.content_type and "blank" not in p.url]
    (folder / "truth.json").write_text(json.dumps({
        "documents": len(with_text), "truncated_records": cut + 1,
        "said": {p.url: [p.language, p.charset, p.said] for p in pages if p.language},
    }))  # fmt: skip


def write_others(folder: Path) -> None:
    """`real/`: files as other tools write them, with more than one layout of the same formats."""
    (folder / "real").mkdir()
    pages = [
        written(language, 300 + n, url=f"http://sample.made.invalid/{language}/{n}") for language in ("en", "de", "ru") for n in range(8)
    ]
    extra = b"<table><tr><td>Herring</td><td>12</td></tr></table>\n<ul><li>Salt</li><li><a href='/s'>Soup</a></li></ul>\n<pre>x = 1</pre>\n</main>"
    pages = [replace(page, body=page.body.replace(b"</main>", extra)) for page in pages]  # what engines of extraction judge differently
    for number, part in enumerate((pages[:16], pages[16:])):
        data = information() + b"".join(member(asked(page)) + member(response(page)) for page in part)
        (folder / "real" / f"sample-wget-{number:04d}.warc.gz").write_bytes(data)
    page = written("es", 400, url="http://single.made.invalid/")
    (folder / "real" / "single.warc.gz").write_bytes(information() + member(asked(page)) + member(response(page)))
    text = "\n".join(paragraphs("es", 3, "page/400")).encode()
    fields = head("conversion", page.url, id_of(page, "conversion"), WARC_Refers_To=f"<urn:uuid:{id_of(page)}>")
    (folder / "real" / "single.warc.wet.gz").write_bytes(information() + member(record(fields, text)))


def chunked(data: bytes, size: int) -> bytes:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in [*pieces, b""])


def write_quirks(folder: Path) -> None:
    """`quirks/`: sound but unusual files, and damaged ones that the list of broken.warc.gz does not have."""
    (folder / "quirks").mkdir()
    page = written("en", 500, url="http://quirk.made.invalid/")
    packed, pieces = gzip.compress(page.body, mtime=0), chunked(page.body, 300)
    start = member(record(head("warcinfo", "", uuid5(SPACE, "quirks")), INFO))
    whole = member(response(page))
    resource = record(
        head("resource", "http://quirk.made.invalid/text", uuid5(SPACE, "resource"), Content_Type="text/plain"), b"Plain words."
    )
    posted = record(head("request", page.url, uuid5(SPACE, "post")), b"POST / HTTP/1.1\r\nHost: quirk.made.invalid\r\n\r\na=1&b=2")
    files = {
        "packed.warc.gz": start + member(asked(page)) + member(response(page, packed, Content_Encoding="gzip")),
        "angle-brackets.warc.gz": start + member(response(page, fields={"WARC-Target-URI": f"<{page.url}>"})),
        "chunked.warc": gzip.decompress(start) + response(page, pieces, Transfer_Encoding="chunked", Content_Length=""),
        "one-member.warc.gz": member(gzip.decompress(start) + response(page)),
        "clipped.warc.gz": start + whole[: len(whole) // 2],
        "clipped.warc": gzip.decompress(start) + response(page)[:-400],
        "resource.warc.gz": start + member(resource),
        "posted.warc.gz": start + member(posted) + whole,
        "space-in-uri.warc.gz": start + member(response(page, fields={"WARC-Target-URI": f"{page.url}a page"})),
        "wrong-digest.warc": response(page, fields={"WARC-Payload-Digest": digest(b"other")}),
        "wrong-chunks.warc.gz": start + member(response(page, pieces.replace(b"12c\r\n", b"zzz\r\n"), Transfer_Encoding="chunked")),
        "beheaded.warc.gz": start[10:] + whole,
        "old.arc.gz": member(b"filedesc://old.arc.gz 0.0.0.0 20260301120000 text/plain 76\n1 0 made\nURL IP-address Archive-date\n"),
    }
    for name, data in files.items():
        (folder / "quirks" / name).write_bytes(data)


def damaged() -> Iterator[tuple[str, Page | None, bytes]]:
    """(defect, page, bytes) per member of broken.warc.gz, in order; the words for the defects are those of the real list."""
    numbers = iter(range(600, 700))

    def page(language: str = "en", charset: str = "utf-8", where: str = "header", count: int = 12) -> Page:
        number = next(numbers)
        return written(language, number, charset, where, count, f"http://damaged.made.invalid/{language}/{number}.html")

    def good(*languages: str) -> Iterator[tuple[str, Page, bytes]]:
        for language in languages:
            own = page(language)
            yield "none", own, member(response(own))

    def odd(defect: str, own: Page, *words: bytes | None, **fields: str) -> tuple[str, Page, bytes]:
        return defect, own, member(response(own, *words, **fields))

    def lacking(defect: str, name: str, value: str = "") -> tuple[str, Page, bytes]:
        own = page()
        return defect, own, member(response(own, fields={name: value}))

    yield "none (warcinfo)", None, information()
    yield from good("de", "en", "fr", "ja")
    yield odd("body encoded as cp1251, declared nothing", page("ru", "cp1251", ""))
    yield odd("body encoded as shift_jis, declared nothing", page("ja", "shift_jis", ""))
    yield odd("body encoded as gb18030, declared nothing", page("zh", "gb18030", ""))
    yield odd("body encoded as iso-8859-1, declared nothing", page("de", "iso-8859-1", ""))
    yield odd("body encoded as cp1252, declared utf-8", page("de", "cp1252", ""), Content_Type="text/html; charset=utf-8")
    yield odd("body encoded as utf-16, declared nothing", page("de", "utf-16", ""))
    yield odd("body encoded as euc-jp, declared iso-8859-1", page("ja", "euc-jp", ""), Content_Type="text/html; charset=iso-8859-1")
    yield odd("Content-Encoding: gzip declared, body is plain", page("es"), Content_Encoding="gzip")
    own = page("de")
    yield odd("Content-Encoding: gzip, body truncated", own, gzip.compress(own.body, mtime=0)[:-300], Content_Encoding="gzip")
    own = page("fr")
    yield odd("none (real Content-Encoding: gzip)", own, gzip.compress(own.body, mtime=0), Content_Encoding="gzip")
    own = page("es", count=60)
    yield odd("none (real chunked body)", own, chunked(own.body, 0xFA0), Transfer_Encoding="chunked", Content_Length="")
    own = page()
    bad = chunked(own.body, 300).replace(b"12c\r\n", b"xyz\r\n")
    yield odd("Transfer-Encoding: chunked with a bad chunk size", own, bad, Transfer_Encoding="chunked", Content_Length="")
    own = page(count=60)
    yield odd("NUL and random bytes inside the page", own, own.body.replace(b"</p>", b" \0\0\x9c\xfe\0 </p>", 2))
    yield odd("empty body with status 200", page("es"), b"")
    own = page("es")
    block = b"HTTP/1.1 two hundred\r\nthis is no header\r\n\r\n" + own.body
    yield "malformed HTTP status line and header", own, member(record(head("response", own.url, id_of(own)), block))
    own = page()
    yield "response record without HTTP headers", own, member(record(head("response", own.url, id_of(own)), own.body))
    yield lacking("wrong WARC-Payload-Digest", "WARC-Payload-Digest", digest(b"another page"))
    own = page()
    line = own.body.replace(b"\n", b" ")
    yield odd("very long single line (page repeated 60 times), HTTP Content-Length 1", own, line * 60, Content_Length="1")
    own = page("ja")
    yield odd("20000 nested unclosed div", own, b"<html><body>" + b"<div>" * 20_000 + own.body)
    yield lacking("WARC-Type missing", "WARC-Type")
    yield lacking("WARC-Target-URI missing", "WARC-Target-URI")
    yield lacking("WARC-Date missing", "WARC-Date")
    yield lacking("WARC-Record-ID missing", "WARC-Record-ID")
    yield lacking("WARC-Date is not a date", "WARC-Date", "the day before yesterday")
    yield lacking("WARC-Target-URI is not a URI", "WARC-Target-URI", "ht!tp:/\x01bad uri")
    yield lacking("unknown WARC-Type", "WARC-Type", "postcard")
    yield from good("de", "es", "ja")
    own = page("fr")
    yield "Content-Length 500 too small", own, member(response(own, length=len(http(own)) - 500))
    yield from good("fr", "es")
    own = page()
    yield "Content-Length 700 too large", own, member(response(own, length=len(http(own)) + 700))
    yield from good("ko", "es")
    own = page("es")
    yield "Content-Length missing", own, member(response(own, length=-1))
    yield from good("ru", "ar")
    own = page()
    data = member(response(own))
    yield "wrong gzip CRC", own, data[:-8] + bytes([data[-8] ^ 255]) + data[-7:]
    yield from good("ja", "hi", "de")
    own = page(count=60)
    data = member(response(own))
    yield "damaged deflate data in the middle of the member", own, data[: len(data) // 2] + b"\0" * 30 + data[len(data) // 2 + 30 :]
    yield from good("en", "en", "zh")
    yield "160 bytes of junk between two gzip members", None, hashlib.shake_128(b"junk").digest(160).replace(b"\x1f\x8b", b"\0\0")
    yield from good("fr", "en", "en")
    own = page()
    yield "last gzip member truncated", own, member(response(own))[:-200]


def write_broken(folder: Path) -> None:
    """broken.warc.gz, and broken.expected.jsonl: per member its URL, what is wrong, and a sentence that a page must keep."""
    members = list(damaged())
    (folder / "broken.warc.gz").write_bytes(b"".join(data for _, _, data in members))
    rows = [
        {"n": n, "url": page and page.url, "defect": defect, "expect": "page kept" if defect.startswith("none") and page else "",
         "said": page.said if page and defect.startswith(("none", "body")) else ""}
        for n, (defect, page, _) in enumerate(members)
    ]  # fmt: skip
    (folder / "broken.expected.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_all(folder: Path) -> None:
    """The folder `crawl` of the made data."""
    folder.mkdir(parents=True)
    write_crawl(folder)
    write_broken(folder)
    write_others(folder)
    write_quirks(folder)
