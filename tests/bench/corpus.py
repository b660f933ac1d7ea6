"""What the benchmarks run on: the documents of the real crawl, extracted once and kept in a home below the temporary folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from stages import crawl, extract
from stages.core.contract.declaration import Artifact
from tests.conftest import run_stage
from tests.made.real import real_folder

HOME = Path(os.environ.get("LOAM_BENCH_HOME") or Path(tempfile.gettempdir()) / "loam-bench")


def crawl_documents() -> Artifact:
    """The documents artifact of the ten crawl files, one shard per file."""
    warcs = run_stage(crawl.STAGE, {"warcs": [str(real_folder() / "crawl" / "CRAWL-*.warc.gz")]}, {}, HOME)
    return run_stage(extract.STAGE, {"max_bad_records": 100}, {"warc": warcs}, HOME, runtime={"workers": 2})


def texts_and_urls() -> tuple[list[str], list[str]]:
    """All texts, and their URLs."""
    from stages.core.tables.documents import document_shards
    from stages.core.tables.parquet import read_rows

    rows = [row for path in document_shards(crawl_documents().path) for row in read_rows(path, ["text", "url"])]
    return [row["text"] for row in rows], [row["url"] for row in rows]


def file_texts(warc: Path, home: Path) -> list[str]:
    """The texts of one crawl file's documents, in order."""
    from stages.core.tables.parquet import read_rows

    crawled = run_stage(crawl.STAGE, {"warcs": [str(warc)]}, {}, home)
    documents = run_stage(extract.STAGE, {"max_bad_records": 100}, {"warc": crawled}, home)
    return [row["text"] for row in read_rows(documents.path / "documents" / "00000.parquet", ["text"])]
