"""The cost of a crawl, against figures worked out by hand from made coefficients; and the table itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli.calculator import crawl_lines
from flows.pipeline import pipeline
from stages.questions.calculator import data_cost as module
from stages.questions.calculator.data_cost import Cluster, Crawl, DataCost, Recorded, data_cost, home_records
from stages.questions.calculator.data_stages import COMMON_CRAWL, STAGES, Per, SerialPart, StageCost
from tests.conftest import rewrite_manifest
from tests.questions.two_runs import make_artifact

MADE = {
    "crawl": StageCost("made", 1e6, 0.0, 1.0, 0.0, (SerialPart("hash", 2.0, Per.INPUT),), 0.0, 0.0, 0.0),
    "extract": StageCost("made", 2e9, 0.5, 0.5, 100.0, (SerialPart("ids", 10.0, Per.DOCUMENTS), SerialPart("sums", 4.0, Per.OUTPUT)), 0.25, 0.1, 1e9, 2.0, 80.0),
    "train_tokenizer": StageCost("made", 1e9, 0.0, 0.0, 50.0, (SerialPart("choice", 3.0, Per.INPUT), SerialPart("merges", 7.0, Per.SHARED_INPUT)),
                                 1.0, 0.0, 1e8, text_bytes_per_byte=2.0),
    "encode": StageCost("made", 1e9, 2.0, 1.0, 10.0, (SerialPart("start", 5.0, Per.RUN),), 0.0, 0.0, 1e8),
}  # fmt: skip
READS = {"crawl": (), "extract": ("crawl",), "train_tokenizer": ("extract",), "encode": ("train_tokenizer", "extract")}
CRAWL = Crawl(100, 1e9, 20_000.0, "made")
"""100 files of 1 GB with 20,000 pages: 100 GB and 2 M pages."""


@pytest.fixture(autouse=True)
def made_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGES", MADE)


def cost(cluster: Cluster, **changes: Any) -> DataCost:
    return data_cost(**{"crawl": CRAWL, "cluster": cluster, "reads": READS, "records": {}, "most_bytes": {}, **changes})


def test_bytes_documents_and_time_follow_the_stages() -> None:
    """extract: 100 GB in, 50 out, 10,000 s of workers on 20 cores, 20 s for ids of 2 M documents and 200 s for 50 GB."""
    found = cost(Cluster(2, 10))
    crawl, extract, tokenizer, encode = found.stages
    assert crawl.in_bytes == 100e9 and crawl.shards == 1 and crawl.wall_s == crawl.serial_s == 200 and crawl.documents == 2e6
    assert (extract.in_bytes, extract.out_bytes, extract.scratch_bytes, extract.shuffle_bytes) == (100e9, 50e9, 25e9, 10e9)
    assert extract.documents == 1e6 and extract.worker_s == 10_000 and [part.seconds for part in extract.serial] == [20, 200]
    assert extract.wall_s == 220 + 500 and extract.shards == 100
    assert extract.worker_memory_bytes == 1e9 + 2 * 1e9 and extract.driver_memory_bytes == 80 * 2e6
    assert tokenizer.driver_memory_bytes is None and tokenizer.documents == 0
    assert encode.in_bytes == 50e9 and encode.out_bytes == 100e9 and encode.documents == 1e6 and encode.wall_s == 5 + 500 / 20
    assert found.wall_s == sum(one.wall_s for one in found.stages)


def test_more_cores_than_shards_do_not_help() -> None:
    assert cost(Cluster(1000, 100)).stages[1].wall_s == 220 + 10_000 / 100


def test_disk_and_network_limit_where_their_bandwidth_is_given() -> None:
    """The stage moves 100 + 50 + 2 · 25 GB over the disks of two nodes, and 10 GB over their network."""
    assert cost(Cluster(2, 10)).unknown == ("--disk", "--network", "--node-memory")
    slow = cost(Cluster(2, 10, 1e12, 1e8, 1e6))
    extract = slow.stages[1]
    assert slow.unknown == () and extract.parallel == {"processor": 500, "disk": 1000, "network": 5000} and extract.wall_s == 220 + 5000
    first = slow.bottlenecks[0]
    assert (first.node, first.limit, first.seconds) == ("extract", "network", 5000)


def test_the_largest_bottlenecks_are_named_and_what_does_not_fit_comes_first() -> None:
    found = cost(Cluster(2, 10))
    assert [(one.node, one.limit, one.what, one.seconds) for one in found.bottlenecks] == [
        ("extract", "processor", "100 shards", 500), ("train_tokenizer", "serial", "merges", 350), ("crawl", "serial", "hash", 200)
    ]  # fmt: skip
    tight = cost(Cluster(2, 10, memory_bytes=20e9)).bottlenecks
    assert (tight[0].node, tight[0].limit, tight[0].what, tight[0].seconds) == ("extract", "memory", "the 10 workers of a node", None)
    assert [one.limit for one in cost(Cluster(2, 10, memory_bytes=31e9)).bottlenecks] == ["processor", "serial", "serial"]
    many = cost(Cluster(2, 1, memory_bytes=31e9), crawl=replace(CRAWL, pages_per_file=4e6)).bottlenecks[0]
    assert (many.node, many.limit, many.what) == ("extract", "memory", "the driver"), "80 bytes for 400 M pages"


def test_a_plan_says_what_dedup_would_refuse_and_what_to_do() -> None:
    """It numbers 4,294,967,295 documents and as many buckets. extract keeps half of the pages; made documents share two buckets each."""
    made = {**MADE, "dedup": StageCost("made", 1e9, 1.0, 1.0, 0.0, (), 0.0, 0.0, 0.0, buckets_per_document=2.0)}
    reads = {**READS, "dedup": ("extract",)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STAGES", made)
        for pages, expected in (
            (42_949_672.0, []),
            (43e6, [("buckets", 4.3e9)]),
            (90e6, [("documents", 4.5e9), ("buckets", 9e9)]),
        ):
            found = cost(Cluster(2, 10), reads=reads, crawl=replace(CRAWL, pages_per_file=pages)).refusals
            assert [(one.node, one.what, one.count) for one in found] == [("dedup", *one) for one in expected]
            assert all(one.most == 4_294_967_295 for one in found)
    assert [one.do.partition(",")[0] for one in found] == ["Divide the crawl into at least 3 parts"] * 2
    lines = dict(crawl_lines(replace(cost(Cluster(2, 10)), refusals=found[:1]), "", ""))
    assert lines["dedup refuses"].startswith(
        "about 4.5 B documents, it numbers at most 4,294,967,295. Divide the crawl into at least 3 parts"
    )


def test_a_limit_on_the_text_limits_the_workers_and_not_the_choice() -> None:
    """20 GB of text are 10 of 50 GB."""
    found = cost(Cluster(2, 10), most_bytes={"train_tokenizer": 20e9}).stages[2]
    assert found.in_bytes == 50e9 and found.worker_s == 500 and [part.seconds for part in found.serial] == [150, 70]
    assert found.scratch_bytes == 10e9


def test_a_build_of_this_home_stands_in_for_the_table() -> None:
    """It read 4 GB with two workers. By the table that takes 40 s of serial parts at 2 M documents per 100 GB and 4 GB: 8.8 s, and 200 s of workers."""
    record = Recorded("extract-3", 4e9, 1e9, 10_000.0, 2 * (8.8 + 200), 2, 6e9, 8e9)
    found = cost(Cluster(2, 10), records={"extract": record}).stages[1]
    assert found.by == "extract-3" and found.out_bytes == 25e9 and found.documents == 250_000 and found.scratch_bytes == 200e9
    serial = 20 + 4 * 25  # ids of 2 M documents, sums of 25 GB, by the table
    by_table = (serial + 10_000 / 2) * 4 / 100
    factor = record.seconds / by_table
    assert found.serial_s == pytest.approx(serial * factor) and found.worker_s == pytest.approx(10_000 * factor)
    assert found.worker_memory_bytes == 3e9 + 2e9, "half of the memory of both workers, and the shard's share"


def test_a_node_without_coefficients_is_said_to_be_unknown() -> None:
    """A node that no stage of the table reads is no part of the data half."""
    reads: dict[str, tuple[str, ...]] = {
        "crawl": (),
        "train_quality": ("crawl",),
        "extract": ("crawl", "train_quality"),
        "report": ("extract",),
    }
    assert cost(Cluster(1, 1), reads=reads).unknown == ("train_quality: no coefficients", "--disk", "--network", "--node-memory")


def build(home: Path, number: int, size: int, measured: bool = True, **changes: Any) -> None:
    """An extract-<number> that read a crawl of so many bytes in 50 s."""
    for node in ("crawl", "extract"):
        (home / "manifests" / node).mkdir(parents=True, exist_ok=True)
    crawl = make_artifact(home, "crawl", number, {}, {})
    rewrite_manifest(home / "artifacts" / crawl, summary={"bytes": size})
    name = make_artifact(home, "extract", number, {"warc": crawl}, {})
    usage = {"usage": {"memory_bytes": 8, "scratch_bytes": 9}} if measured else {}
    times = {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:00:50+00:00"}
    rewrite_manifest(
        home / "artifacts" / name, **{**times, **usage, "bytes": 500, "rows": 70, "unit": "documents", "runtime": {"workers": 4}, **changes}
    )


def test_the_largest_build_that_read_as_much_as_the_table_is_taken(tmp_path: Path) -> None:
    """The measurement of extract read 2 GB."""
    home = tmp_path / "home"
    build(home, 1, 1_999_999_999)
    assert home_records(home, ["crawl", "extract", "other"]) == {}
    build(home, 2, 2_000_000_000)
    build(home, 3, 3_000_000_000, unit="rows")
    build(home, 4, 4_000_000_000, measured=False)
    assert home_records(home, ["extract"]) == {"extract": Recorded("extract-3", 3e9, 500, None, 50.0, 4, 8, 9)}
    (home / "artifacts" / make_artifact(home, "extract", 5, {}, {}) / "manifest.json").write_text("{")
    assert home_records(home, ["extract"])["extract"].alias == "extract-3", "a damaged one is left out"
    build(home, 6, 5_000_000_000)
    assert home_records(home, ["extract"])["extract"] == Recorded("extract-6", 5e9, 500, 70.0, 50.0, 4, 8, 9)


# ------------------------------------------------------------------------------------------------------------ the table


def test_the_table_has_every_stage_of_the_data_half_with_a_source() -> None:
    names = {node.name for node in pipeline()}
    assert set(STAGES) <= names and list(STAGES)[0] == "crawl" and list(STAGES)[-1] == "mix"
    for stage in STAGES.values():
        assert "docs/results.md" in stage.source or "2026-" in stage.source
        assert stage.measured_bytes > 0 and all(part.seconds > 0 and part.what for part in stage.serial)


def test_a_file_of_common_crawl() -> None:
    assert COMMON_CRAWL.bytes_per_file == pytest.approx(1.0284e9, rel=1e-3) and COMMON_CRAWL.pages_per_file == 45_312.5
