"""extract: extracts the main text of every page in a crawl and records a decision for every record.

The stage reads WARC responses, which it decodes and cleans of navigation, and WET conversions, whose text it takes as it is.

Guarantee: each record and each unreadable part of a file gets one decision, and files.parquet counts them per file and reason. The same
bytes give the same output in file and record order. Neither the number of workers nor the load of the machine changes it, because no
time limit drops a page. doc_id follows ARCHITECTURE.md.
Cost: about 500 pages/s per core; one page in memory.
Source: resiliparse; by recipe trafilatura or jusText.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

from pydantic import Field

from stages.core.contract.declaration import Artifact, Context, ExternalFile, Importer, Outcome, RecordCounts, Stage
from stages.core.contract.errors import StageError
from stages.core.contract.side_table import Column, SideTable
from stages.core.store import external
from stages.core.store.remote import opened
from stages.core.tables import import_documents
from stages.core.tables.documents import DOCUMENTS, decisions_with
from stages.core.tables.parquet import read_rows, schema, write_rows
from stages.core.tables.shards import Meter, Shard, collect, run_shards
from stages.settings import StageConfig
from stages.text.warc.html import Engine, ParserError
from stages.text.warc.page_reasons import BROKEN, DAMAGED, PageReason

if TYPE_CHECKING:
    from stages.text.warc.records import WarcRecord

WARC = Column("int32", "number of the WARC file in the crawl's files.json")
CHARS_IN, CHARS_OUT = Column("int64", "characters of the HTML"), Column("int64", "characters of the text")
DECISIONS = decisions_with({
    "warc": WARC,
    "ordinal": Column("int64", "number of the record in the file"),
    "status": Column("int32", "HTTP status"),
    "mime": Column("string", "media type"),
    "encoding": Column("string", "the charset it was read in"),
    "lang": Column("string", "ISO 639-1 code of its language"),
    "lang_score": Column("float64", "how sure the language is, 0 to 1"),
    "chars_in": CHARS_IN,
    "chars_out": CHARS_OUT,
})  # fmt: skip
FILES = SideTable(
    "files", "files", "the records of a WARC file with one reason",
    {
        "warc": WARC,
        "name": Column("string", "the file"),
        "source": Column("string", "its source"),
        "bytes": Column("int64", "size of the file"),
        "reason": Column("string", "why they were dropped; null of those that are documents"),
        "records": Column("int64", "how many"),
        "chars_in": CHARS_IN,
        "chars_out": CHARS_OUT,
    },
)  # fmt: skip
WEB_URL = re.compile(r"https?://[^\s/?#]*[^\W_][^\s]*$", re.IGNORECASE)
GENERIC = frozenset({"", "text/xml", "application/xml", "application/octet-stream", "text/plain"})


class ExtractConfig(StageConfig):
    """Settings of the extract stage: which records are read as pages, and the limits for them."""

    engine: Engine = "resiliparse"
    """The library that finds the main text: resiliparse, trafilatura (27 times slower) or justext (8 times slower). trafilatura and justext
    drop pages of more than 40,000 elements (5 of 3,648 pages of the test crawls)."""
    statuses: tuple[int, ...] = Field((200,), min_length=1)
    """HTTP status codes of the pages to read."""
    mimes: tuple[str, ...] = Field(("text/html", "application/xhtml+xml"), min_length=1)
    """Content types to read. A page with another generic type (XML, plain text, binary, none) is read if its content begins like HTML."""
    max_page_bytes: int = Field(10_000_000, ge=1)
    """Larger pages are dropped; the size counts as stored and as decompressed (bytes). Common Crawl cuts pages at 1 or 5 MB; the largest
    page of the test crawls has 7.4 MB. At 10 MB no page takes more than 2 s or 300 MB, whatever its content (tests/text/hostile.py)."""
    max_ratio: float = Field(100.0, gt=1)
    """A gzip member or page whose decompressed size exceeds both max_page_bytes and this many times its compressed size is a bomb; reading
    stops there. 100 is Apache POI's limit (ZipSecureFile). In the test crawls the highest ratio is 29, among pages above 1 MB 14."""
    max_bad_char_frac: float = Field(0.01, ge=0, le=1)
    """Pages with a larger share of undecodable characters are dropped with the reason charset (a guess: at one in a hundred, every line
    shows one)."""
    min_chars: int = Field(1, ge=1)
    """Shorter texts are dropped with the reason no_text (characters)."""
    max_bad_records: int = Field(0, ge=0)
    """Number of damaged records (unreadable, truncated, bomb, bad_head, bad_length, bad_http, bad_encoding) that the stage skips before it
    fails."""


def run(config: ExtractConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes documents/ and decisions/ with one shard per WARC file of the crawl, and files.parquet."""
    warc = inputs["warc"].path
    files = json.loads((warc / "files.json").read_text())
    tasks = [_task(warc, number, file, config) for number, file in enumerate(files)]
    shards = run_shards(extract_file, tasks, ctx, "extract", [file["bytes"] for file in files], apart=True)
    for shard in shards:
        for bad in shard.result["bad"]:
            ctx.drop(f"a record is {bad['reason']}", bad["where"], bad["url"])
    renamed = _publish(shards, files, out)
    write_rows(out / "files.parquet", schema(**FILES.types), (row for shard in shards for row in shard.result["file"]))
    record_counts = sum((RecordCounts(**shard.result["record_counts"]) for shard in shards), RecordCounts(unit="records"))
    documents = record_counts.kept
    if not documents:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(record_counts.dropped.items()))
        raise StageError(
            "No page of the crawl gave any text.",
            where=f"{len(files)} WARC files, {record_counts.rows_in} records ({reasons})",
            do="Check that the files hold HTML responses, and extract.statuses and extract.mimes.",
        )
    summary = {"files": len(files), "documents": documents, "text_chars": record_counts.chars_out, "duplicate_record_ids": renamed}
    return Outcome(rows=documents, record_counts=record_counts, summary=summary)


def import_files(files: tuple[ExternalFile, ...], out: Path, ctx: Context) -> Outcome:
    """Imports documents of a user. A row without a language gets a detected one, because the filter needs it."""
    from stages.text.warc.language_id import detect_language

    return import_documents.take_documents(files, out, ctx, detect_language)


def extract_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Writes documents.parquet and decisions.parquet of one WARC or WET file; returns its record counts and damaged records."""
    config = ExtractConfig.model_validate(task["config"])
    bad: list[dict[str, str]] = []
    decisions: list[dict[str, Any]] = []
    totals: dict[str, list[int]] = {}

    def documents() -> Iterator[dict[str, Any]]:
        seen: set[UUID] = set()
        for record in _records(task, config):
            at = f"{task['name']}:{record.ordinal}"
            meter.at(f"{at} {record.url}")
            try:
                reason, row = _page(record, config)
            except (ParserError, MemoryError) as error:
                raise _failed(f"{at} {record.url}", error) from None
            row |= {"doc_id": _doc_id(record, task["identity"], seen), "url": record.url, "warc": task["number"], "ordinal": record.ordinal,
                    "status": record.status, "mime": record.mime, "reason": reason or None}  # fmt: skip
            row["verdict"] = "dropped" if reason else "kept"
            meter.add(1, record.offset - meter.size_bytes, reason, share=record.offset / max(1, task["bytes"]))
            total = totals.setdefault(reason, [0, 0, 0])
            for i, amount in enumerate((1, row["chars_in"], row["chars_out"])):
                total[i] += amount
            if reason in DAMAGED:
                bad.append({"reason": reason, "where": at, "url": record.url})
            text = row.pop("text", "")
            decisions.append(row)
            if not reason:
                yield {**row, "text": text, "source": task["source"], "date": record.date}

    try:
        write_rows(folder / "documents.parquet", schema(**DOCUMENTS.types), documents())
        write_rows(folder / "decisions.parquet", schema(**DECISIONS.types), decisions)
    except MemoryError as error:  # raised while a record was read or written
        raise _failed(f"{task['name']}, behind record {len(decisions) - 1}", error) from None
    of_file = {"warc": task["number"], "name": task["name"], "source": task["source"], "bytes": task["bytes"]}
    rows = [
        of_file | {"reason": reason or None, "records": total[0], "chars_in": total[1], "chars_out": total[2]}
        for reason, total in sorted(totals.items())
    ]
    return {"record_counts": asdict(_record_counts(totals)), "bad": bad, "rows": totals.get("", [0])[0], "file": rows}


def _failed(where: str, error: BaseException) -> StageError:
    return StageError(
        f"The parser failed on a page, which says nothing about the page: {str(error) or type(error).__name__}.",
        where=where,
        do="Most often memory ran out: set runtime.workers lower, or raise the limit of memory, and run it again; finished files are kept.",
    )


def _record_counts(totals: Mapping[str, list[int]]) -> RecordCounts:
    """Returns the record counts of one file. totals: reason ("" = kept) -> [records, characters in, characters out]."""
    kept = totals.get("", [0, 0, 0])
    dropped = {reason: total for reason, total in totals.items() if reason}
    return RecordCounts(
        unit="records",
        rows_in=sum(total[0] for total in totals.values()),
        kept=kept[0],
        dropped={reason: total[0] for reason, total in dropped.items()},
        chars_in=sum(total[1] for total in totals.values()),
        chars_out=kept[2],
        chars_removed=kept[1] - kept[2],
        chars_dropped={reason: total[1] for reason, total in dropped.items()},
    )


def _task(warc: Path, number: int, file: Mapping[str, Any], config: ExtractConfig) -> dict[str, Any]:
    uri = str(warc / file["path"]) if "path" in file else file["uri"]
    return {"number": number, "uri": uri, "name": uri.rpartition("/")[2], "bytes": file["bytes"], "identity": file["identity"],
            "source": file["source"], "config": config.model_dump(mode="json")}  # fmt: skip


def _records(task: Mapping[str, Any], config: ExtractConfig) -> Iterator[WarcRecord]:
    from stages.text.warc.framing import WarcLimits
    from stages.text.warc.records import read_records

    try:
        with opened(task["uri"]) as stream:
            if stream.seek(0, 2) != task["bytes"]:
                raise _changed(task)
            yield from read_records(stream, WarcLimits(config.max_page_bytes, config.max_ratio))
        if external.changed(ExternalFile(task["uri"], task["bytes"], task["identity"]), {}):
            raise _changed(task)
    except FileNotFoundError:
        raise StageError("A WARC file of the crawl is gone.", where=task["uri"], do="Put it back, or change crawl.warcs.") from None


def _changed(task: Mapping[str, Any]) -> StageError:
    return StageError(
        "The file has changed since the crawl stage read it.",
        where=f"{task['uri']} (then {task['bytes']:,} bytes, {task['identity'][:19]})",
        do="Run the recipe again; the crawl stage takes the new content as a new input.",
    )


def _page(record: WarcRecord, config: ExtractConfig) -> tuple[str, dict[str, Any]]:
    """Returns (drop reason or "", columns of the record with the text). chars_in counts bytes where a page was not decoded."""
    from stages.text.warc.charset import bad_frac, decode_page
    from stages.text.warc.html import TooCostlyError, extract_text, tidy
    from stages.text.warc.language_id import detect_language

    size = len(record.body) or record.size_bytes
    row: dict[str, Any] = {"chars_in": size, "chars_out": 0}
    reason = _unwanted(record, config)
    if reason:
        return reason, row
    is_page = record.type == "response"
    page, encoding = decode_page(record.body, record.charset) if is_page else (record.body.decode("utf-8", "replace"), "utf-8")
    row |= {"chars_in": len(page), "encoding": encoding}
    if bad_frac(page) > config.max_bad_char_frac:
        return PageReason.CHARSET, row
    try:
        text = extract_text(page, config.engine) if is_page else tidy(page)
    except TooCostlyError as error:
        return error.reason, row
    if len(text) < config.min_chars:
        return PageReason.NO_TEXT, row
    lang, score = detect_language(text)
    return "", row | {"text": text, "chars_out": len(text), "lang": lang, "lang_score": score}


def _unwanted(record: WarcRecord, config: ExtractConfig) -> str:
    """Returns why a record is not read, or "" if it is. The checks run in this order: damage, type, URL, status, content type, body."""
    from stages.text.warc.html import looks_like_html

    if record.problem in BROKEN:
        return record.problem
    if record.type not in ("response", "conversion"):
        return PageReason.REVISIT if record.type == "revisit" else PageReason.NOT_A_PAGE
    if record.problem in (PageReason.BAD_HTTP, PageReason.NOT_HTTP):
        return record.problem
    if not WEB_URL.match(record.url):
        return PageReason.BAD_URL
    typed = record.type == "conversion" or record.mime in config.mimes
    if record.status and record.status not in config.statuses:
        return PageReason.HTTP_STATUS
    if record.status and not typed and record.mime not in GENERIC:
        return PageReason.CONTENT_TYPE
    if record.problem or not record.body:
        return record.problem or PageReason.EMPTY
    return "" if typed or looks_like_html(record.body) else PageReason.CONTENT_TYPE


def _doc_id(record: WarcRecord, identity: str, seen: set[UUID]) -> UUID:
    """Returns the id of the record if it is new, else `fallback_doc_id`. A WET conversion uses the id of the page it refers to."""
    own = record.refers_to if record.type == "conversion" else record.record_id
    doc_id = own if own and own not in seen else fallback_doc_id(identity, record.ordinal)
    seen.add(doc_id)
    return doc_id


def fallback_doc_id(identity: str, ordinal: int) -> UUID:
    """Returns uuid5 of the file's sha256 (for a remote file, its ETag and size) and the record's ordinal."""
    return uuid5(NAMESPACE_OID, f"{identity.removeprefix('sha256:')}:{ordinal}")


def _publish(shards: list[Shard[dict[str, Any]]], files: list[dict[str, Any]], out: Path) -> int:
    """Publishes the shard files in `out` and replaces record ids that an earlier file of the same source has; returns how many."""
    seen: dict[str, set[UUID]] = {}
    clean: list[Shard[dict[str, Any]]] = []
    renamed = 0
    for shard in shards:
        file = files[shard.index]
        known = seen.setdefault(file["source"], set())
        rows = list(read_rows(shard.path / "decisions.parquet", ["doc_id", "ordinal"]))
        new = {row["doc_id"]: fallback_doc_id(file["identity"], row["ordinal"]) for row in rows if row["doc_id"] in known}
        known.update(new.get(row["doc_id"], row["doc_id"]) for row in rows)
        if not new:
            clean.append(shard)
            continue
        renamed += len(new)
        for name, columns in (("documents", DOCUMENTS.types), ("decisions", DECISIONS.types)):
            changed = ({**row, "doc_id": new.get(row["doc_id"], row["doc_id"])} for row in read_rows(shard.path / f"{name}.parquet"))
            write_rows(out / name / f"{shard.index:05d}.parquet", schema(**columns), changed)
    collect(clean, "documents.parquet", out)
    collect(clean, "decisions.parquet", out)
    return renamed


STAGE = Stage(
    name="extract",
    config=ExtractConfig,
    run=run,
    inputs={"warc": "crawl"},
    output="documents",
    tables=(DOCUMENTS, DECISIONS, FILES),
    does="HTML to text (fastwarc, resiliparse); every record is accounted for",
    versions=(
        "resiliparse main content; language beside the text",
        "damaged records named apart (bad-length, bad-head, bomb, charset, too-deep), wrong charsets found out, engine by recipe, files.parquet",
        "records that go on in the next gzip member (files compressed in blocks) are whole",
        "pages past limits of elements, attributes, names and depth, counted before they are parsed, are dropped by a reason each",
        "trafilatura and justext: pages of more than 40,000 elements are dropped as too-many-elements; a page that lxml fails on is an error",
        "reasons are spelled in snake_case",
    ),
    distributions=("fastwarc", "resiliparse", "trafilatura", "jusText", "lxml", "pyarrow"),
    importer=Importer(import_documents.PATTERNS, import_files),
)
