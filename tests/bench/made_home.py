"""A home of any size with manifests, run records and Parquet side tables in the real format, for the benchmark of the index.

The shape is that of work on one recipe: a run has every node of the pipeline; the corpus is shared by 20 runs, the data behind
it by 4, the base model by 2, the rest is each run's own. What has no decisions in the real pipeline has none here.
Cost: about 0.1 ms per artifact and 0.5 us per document row; nothing is fsynced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flows.pipeline import pipeline, stage_of
from stages.record.contract.environment import environment

SHARED_BY = {"crawl": 20, "benchmarks": 20, "conversations": 20, "preferences": 20, "extract": 20} | dict.fromkeys(
    ("train_quality", "filter", "dedup", "decontaminate", "train_tokenizer", "encode", "mix"), 4
) | {"pretrain": 2, "export@base": 2, "evaluate@base": 2}  # fmt: skip
DECIDES = ("extract", "filter", "dedup", "decontaminate")
STARTED = "2026-01-01T00:00:00.000+00:00"


@dataclass(frozen=True)
class Made:
    """What was written: artifacts, runs, document rows, files that hold them."""

    artifacts: int
    runs: int
    rows: int
    files: int


def make_home(home: Path, artifacts: int, rows: int, first_run: int = 0, seed: int = 1) -> Made:
    """Writes whole runs until there are `artifacts` more; their decisions hold `rows` rows in all.

    first_run: the number of the first run, to add to a home.
    """
    shape = pipeline()
    planned = list(_planned(artifacts, first_run))
    deciding = sum(node in DECIDES for _, node in planned)
    per_file = rows // deciding if deciding else 0
    draw = np.random.default_rng([seed, first_run])
    texts = {node.name: template(node.name) for node in shape}
    inputs = {node.name: node.inputs for node in shape}
    written = 0
    for run, node in planned:
        folder = home / "artifacts" / artifact_name(node, run)
        (folder / "decisions").mkdir(parents=True) if node in DECIDES else folder.mkdir(parents=True)
        if node in DECIDES:
            _write_decisions(folder / "decisions" / "00000.parquet", per_file, run // SHARED_BY["extract"], node, draw)
            written += per_file
        elif node == "mix":
            _write_spans(folder, run)
        elif node == "pretrain":
            _write_steps(folder)
        write_manifest(folder, run, node, inputs[node], texts[node])
    last = planned[-1][0] if planned else first_run
    for run in range(first_run, last + 1):
        names = [node.name for node in shape]
        write_run(home, run, names[: names.index(planned[-1][1]) + 1] if run == last else names)
    return Made(len(planned), last + 1 - first_run, written, deciding)


def artifact_name(node: str, run: int) -> str:
    """The artifact that run number `run` uses for a node."""
    return f"{node}/{_key(node, run)[:12]}"


def document(corpus: int, number: int) -> tuple[str, str]:
    """(doc_id as 32 hex digits, URL) of one document of a corpus."""
    return _ids(corpus, number + 1)[number].tobytes().hex(), f"http://{corpus}.example/page-{number}"


def _planned(artifacts: int, first_run: int) -> Iterator[tuple[int, str]]:
    left, run = artifacts, first_run
    while left:
        for node in (n.name for n in pipeline()):
            if run % SHARED_BY.get(node, 1) == 0 or run == first_run:
                if (run // SHARED_BY.get(node, 1)) * SHARED_BY.get(node, 1) < first_run:
                    continue  # an earlier call wrote it
                yield run, node
                left -= 1
                if not left:
                    return
        run += 1


def _key(node: str, run: int) -> str:
    return hashlib.sha256(f"{node} {run // SHARED_BY.get(node, 1)}".encode()).hexdigest()


def _run_id(run: int) -> str:
    return f"20260101-{run:06d}-made-0000"


def template(node: str) -> str:
    """A manifest of a node as text, with @…@ where artifacts differ."""
    tables = next({table.name: table.view for table in stage_of(one).tables} for one in pipeline() if one.name == node)
    config = {f"setting_{i}": [0.25 * i, f"value {i}", True] for i in range(20)}
    record: dict[str, Any] = {
        "node": node, "stage": node.partition("@")[0], "kind": "documents", "key": "@key@", "digest": "@digest@", "identity": [],
        "version": 2, "version_notes": ["first", "second"], "config": config, "seed": 1,
        "key_parts": {"node": node, "version": 2, "config": config, "seed": 1, "files": {}, "packages": {}, "inputs": "@digests@"},
        "inputs": "@inputs@", "external": {}, "rows": 1000, "tokens": 0,
        "record_counts": {"unit": "documents", "rows_in": 1000, "kept": 800, "changed": 100, "dropped": {"language": 60, "short": 40},
                  "chars_in": 900000, "chars_out": 700000, "chars_removed": 1000, "chars_dropped": {"language": 150000, "short": 49000}},
        "summary": {f"metric_{i}": 0.5 + i for i in range(8)},
        "files": "@files@", "tables": tables, "bytes": 123456, "run_id": "@run@",
        "code": {"commit": "0" * 40, "dirty": "", "stage": hashlib.sha256(node.encode()).hexdigest()},
        "runtime": {"workers": 1, "gpus": 0}, "environment": environment(("duckdb", "pyarrow")),
        "started": STARTED, "ended": STARTED, "alias": "@alias@",
    }  # fmt: skip
    return json.dumps(record, indent=1)


def write_manifest(folder: Path, run: int, node: str, inputs: Mapping[str, str], text: str) -> None:
    """Writes a manifest for the files of a folder. text: as `template` returns it."""
    key = folder.name
    full = _key(node, run)
    parents = {
        role: {"artifact": artifact_name(p, run), "node": p, "key": _key(p, run), "digest": _key(p, run)[::-1]}
        for role, p in inputs.items()
    }
    found = sorted(p for p in folder.rglob("*.parquet"))
    files = [{"path": p.relative_to(folder).as_posix(), "bytes": p.stat().st_size, "sha256": full} for p in found]
    files += [{"path": f"part-{i}.bin", "bytes": 1000, "sha256": full} for i in range(2)]
    text = text.replace("@key@", full).replace("@digest@", full[::-1]).replace("@run@", _run_id(run))
    text = text.replace("@alias@", f"{node}-{run // SHARED_BY.get(node, 1) + 1}").replace('"@inputs@"', json.dumps(parents))
    text = text.replace('"@digests@"', json.dumps({role: p["digest"] for role, p in parents.items()})).replace(
        '"@files@"', json.dumps(files)
    )
    assert key == full[:12]
    (folder / "manifest.json").write_text(text)


def write_run(home: Path, run: int, nodes: list[str]) -> None:
    """Writes the record of a run that has these nodes."""
    folder = home / "runs" / _run_id(run)
    folder.mkdir(parents=True)
    record = {
        "run_id": _run_id(run), "seq": run + 1, "alias": f"made-{run + 1}", "recipe": "made", "recipe_source": "made.yaml",
        "resolved": {node: {f"setting_{i}": i for i in range(10)} for node in nodes}, "command": {"flow": "pretrain", "until": "", "node": ""},
        "code": {"commit": "0" * 40, "dirty": ""}, "environment": environment(), "packages": {f"package-{i}": "1.0" for i in range(250)},
        "started": STARTED,
    }  # fmt: skip
    lines = [
        {"node": n, "state": "built" if run % SHARED_BY.get(n, 1) == 0 else "cached", "artifact": artifact_name(n, run), "seconds": 1.0,
         "message": "", "ended": STARTED}
        for n in nodes
    ]  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "nodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "end.json").write_text(json.dumps({"state": "done", "ended": STARTED, "nodes": len(lines)}))


def _ids(corpus: int, count: int) -> np.ndarray[Any, Any]:
    """doc_ids [count, 16] bytes, the same for every artifact of a corpus."""
    return np.random.Generator(np.random.PCG64([7, corpus])).integers(0, 256, (count, 16), dtype=np.uint8)


def _uuids(ids: np.ndarray[Any, Any]) -> pa.Array:
    storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids).tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _write_decisions(path: Path, rows: int, corpus: int, node: str, draw: np.random.Generator) -> None:
    numbers = pc.cast(pa.array(np.arange(rows)), pa.string())
    verdict = pa.array(draw.choice(["kept", "changed", "dropped"], rows))
    columns = {
        "doc_id": _uuids(_ids(corpus, rows)),
        "url": pc.binary_join_element_wise(f"http://{corpus}.example/page-", numbers, ""),
        "verdict": verdict,
        "reason": pc.if_else(pc.equal(verdict, "dropped"), "short", None),
    }
    if node == "filter":
        columns["words"] = pa.array(draw.integers(0, 2000, rows))
    pq.write_table(pa.table(columns), path, compression="zstd")


def _write_spans(folder: Path, run: int) -> None:
    ids = _ids(run // SHARED_BY["extract"], 200)
    (folder / "sequence_spans").mkdir()
    table = {
        "part": ["train"] * 200, "sequence": list(range(200)), "segment": pa.array([0] * 200, pa.int32()), "doc_id": _uuids(ids),
        "source": ["web"] * 200, "shard": pa.array([0] * 200, pa.int32()), "start": [0] * 200, "length": [64] * 200,
    }  # fmt: skip
    pq.write_table(pa.table(table), folder / "sequence_spans" / "train.parquet", compression="zstd")


def _write_steps(folder: Path) -> None:
    (folder / "steps").mkdir()
    table = {"step": [i // 10 + 1 for i in range(200)], "position": list(range(200)), "sequence": list(range(200))}
    pq.write_table(pa.table(table), folder / "steps" / "00000.parquet", compression="zstd")
