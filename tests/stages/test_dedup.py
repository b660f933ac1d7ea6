"""Duplicates across shards, the cluster table, and independence of sharding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.core.stage import Artifact
from stages.core.tables import read_rows, write_rows
from stages.dedup import STAGE
from tests.conftest import run_stage
from tests.stages.made import artifact, documents

BASE = [f"word{i}" for i in range(120)]
NEAR = [*BASE[:118], "other", "end"]
TEXTS = [" ".join(BASE), "\n".join(BASE), " ".join(NEAR), "something else altogether in this short text", " ".join(reversed(BASE))]


def kept(found: Artifact) -> list[str]:
    return [row["text"] for path in sorted((found.path / "documents").glob("*")) for row in read_rows(path)]


def table(found: Artifact, name: str) -> list[dict[str, Any]]:
    return list(read_rows(found.path / name))


def test_kept_are_first_in_canonical_order_and_clusters_say_why(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [TEXTS[:2], TEXTS[2:]])
    found = run_stage(STAGE, {}, {"documents": made}, tmp_path)
    assert kept(found) == [TEXTS[0], TEXTS[3], TEXTS[4]]
    ids = [row["doc_id"] for shard in (0, 1) for row in read_rows(made.path / "documents" / f"{shard:05d}.parquet")]
    clusters = table(found, "clusters.parquet")
    assert [(row["doc_id"], row["cluster"], row["kept_doc_id"], row["kind"]) for row in clusters] == [
        (ids[0], 0, ids[0], "kept"), (ids[1], 0, ids[0], "exact"), (ids[2], 0, ids[0], "near"),
    ]  # fmt: skip
    shingle = [tuple(words[i : i + 5] for i in range(len(words) - 4)) for words in (BASE, NEAR)]
    a, b = ({tuple(s) for s in side} for side in shingle)
    assert clusters[2]["jaccard"] == len(a & b) / len(a | b)
    decisions = table(found, "decisions/00001.parquet")
    assert [(d["reason"], d["kept_doc_id"]) for d in decisions] == [("near_duplicate", ids[0]), (None, None), (None, None)]
    assert found.manifest["books"]["dropped"] == {"exact_duplicate": 1, "near_duplicate": 1}


def test_threshold_and_near_switch(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [TEXTS])
    assert len(kept(run_stage(STAGE, {"threshold": 0.99}, {"documents": made}, tmp_path))) == 4
    assert len(kept(run_stage(STAGE, {"near": False}, {"documents": made}, tmp_path))) == 4


def test_result_depends_neither_on_shards_nor_on_workers(corpora: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    texts = [json.loads(line)["text"] for line in (corpora / "text" / "c4_demo.jsonl").read_text().splitlines()[:60]]
    texts += [text + " with one more sentence." for text in texts[:25]] + texts[10:20]
    made = documents(tmp_path / "made", [texts])
    rows = list(read_rows(made.path / "documents" / "00000.parquet"))
    shape = pq.read_schema(made.path / "documents" / "00000.parquet")
    results = []
    for number, (shards, workers) in enumerate([(1, 1), (3, 1), (3, 2)]):
        folder = tmp_path / f"split{number}"
        for shard in range(shards):
            write_rows(folder / "documents" / f"{shard:05d}.parquet", shape, rows[shard::shards])
        found = run_stage(STAGE, {}, {"documents": artifact(folder, "documents")}, tmp_path / str(number), runtime={"workers": workers})
        results.append((sorted(kept(found)), table(found, "clusters.parquet"), found.manifest["digest"]))
    assert results[0][:2] == results[1][:2]
    assert results[1] == results[2]
    assert len(results[0][0]) == 60


def test_documents_without_words(tmp_path: Path) -> None:
    made = documents(tmp_path / "made", [["...", "!!!", "...", "a"], []])
    assert kept(run_stage(STAGE, {}, {"documents": made}, tmp_path)) == ["...", "!!!", "a"]
