"""A home with one run over millions of documents, for the benchmark of `loam trace`: all side tables of the stages of documents up to pretrain.

Guarantee: tables, columns and types are those that the stages declare, so a table that a stage adds is here too. Every document has a row in
every table of decisions; boilerplate removed LINES_REMOVED runs of lines of each; each document is one segment. An id follows from the
number of its document alone and is as random as a real one, so no part of a file is left out by its range of ids.
Cost: memory of SHARD documents, and of one SEQUENCES part of the table steps; nothing is fsynced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flows.pipeline import pipeline, stage_of
from stages.record.contract.side_table import SideTable
from stages.record.tables.parquet import ROW_GROUP_ROWS, schema
from tests.bench.made_home import artifact_name, template, write_manifest, write_run

SHARD, GROUP_OF_SPANS, SEGMENTS, BATCH, LINES_REMOVED = 50_000, 1 << 17, 3, 512, 5
NODES = (
    "crawl",
    "benchmarks",
    "extract",
    "boilerplate",
    "filter",
    "dedup",
    "decontaminate",
    "train_tokenizer",
    "encode",
    "mix",
    "pretrain",
)
REASONS = {
    "filter": (11, "dropped", "too_short"),
    "dedup": (13, "dropped", "near_duplicate"),
    "decontaminate": (17, "changed", "contaminated"),
}
"""Node -> (n, verdict, reason): every n-th document gets this verdict."""
STRIDE = 1_000_003
"""A prime: document number i * STRIDE modulo their number is at place i of the sequences."""
Values = Mapping[str, "np.ndarray | pa.Array"]


def make_traced_home(home: Path, documents: int) -> None:
    """Writes the home. documents: a multiple of SHARD, and not of STRIDE."""
    if documents % SHARD or not documents % STRIDE:
        raise ValueError(f"The number of documents is a multiple of {SHARD:,} and not of {STRIDE:,}, not {documents:,}.")
    for node in (one for one in pipeline() if one.name in NODES):
        folder = home / "artifacts" / artifact_name(node.name, 0)
        folder.mkdir(parents=True)
        for table in stage_of(node).tables:
            _write_table(folder, node.name, table, documents)
        inputs = {role: name for role, name in node.inputs.items() if name in NODES}
        write_manifest(folder, 0, node.name, inputs, template(node.name))
    write_run(home, 0, [node.name for node in pipeline() if node.name in NODES])


def doc_id(number: int) -> str:
    """The id of a document, as 32 hexadecimal digits."""
    return _ids(np.array([number])).tobytes().hex()


def url(number: int) -> str:
    """The URL of a document."""
    return f"http://host-{number % 4999}.example/page-{number}"


def record(number: int) -> str:
    """The record of a document, as `loam trace --record` takes it."""
    return f"{number // SHARD:05d}.warc.gz:{number % SHARD}"


def _write_table(folder: Path, node: str, table: SideTable, documents: int) -> None:
    """Writes a table that has rows of documents, sequences or WARC files; the others stay empty."""
    shape, shards = schema(**table.types), range(documents // SHARD)
    if table.name == "files":
        files = np.arange(len(shards))
        names = pa.array([f"{number:05d}.warc.gz" for number in files])
        _write(folder / "files.parquet", shape, {"warc": files, "name": names, "reason": pa.nulls(len(files), pa.string())}, len(files))
    elif table.name == "sequence_spans":
        _write_parts(folder / table.name / "train.parquet", shape, documents)
    elif table.name == "steps":
        sequences = np.arange(documents // SEGMENTS)
        _write(
            folder / table.name / "00000.parquet",
            shape,
            {"step": sequences // BATCH + 1, "position": sequences, "sequence": sequences},
            len(sequences),
        )
    elif table.name in ("decisions", "documents", "spans", "removed", "lines", "clusters", "hits"):
        for shard in shards:
            numbers = np.arange(shard * SHARD, (shard + 1) * SHARD)
            _write(folder / table.name / f"{shard:05d}.parquet", shape, *_of_documents(node, table.name, numbers))


def _of_documents(node: str, table: str, numbers: np.ndarray) -> tuple[Values, int]:
    """Returns the columns that matter of the documents' rows in a table, and how many rows there are."""
    every, verdict, reason = REASONS.get(node, (1, "changed", None) if node == "boilerplate" else (0, "", None))
    marked = numbers % every == 0 if every else np.zeros(len(numbers), bool)
    if table in ("clusters", "hits"):
        numbers = numbers[marked]
    elif table == "removed":
        numbers = np.repeat(numbers, LINES_REMOVED)
    ids = _uuids(numbers)
    found: dict[str, np.ndarray | pa.Array] = {
        "doc_id": ids,
        "warc": numbers // SHARD,
        "ordinal": numbers % SHARD,
        "shard": numbers // SHARD,
    }
    found["url"] = pa.array([url(number) for number in numbers.tolist()])
    if table == "decisions":
        found["verdict"] = pa.array(np.where(marked, verdict or "kept", "kept"), pa.string())
        found["reason"] = pa.array(np.where(marked, reason or "", ""), pa.string())
    elif table == "clusters":
        found |= {"kept_doc_id": _uuids(numbers + 1), "kind": pa.repeat("near", len(numbers)), "corpus": pa.repeat("", len(numbers))}
    return found, len(numbers)


def _write_parts(path: Path, shape: pa.Schema, documents: int) -> None:
    """Writes sequence_spans, in groups as mix does."""
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, shape, compression="zstd") as writer:
        for begin in range(0, documents, GROUP_OF_SPANS):
            place = np.arange(begin, min(begin + GROUP_OF_SPANS, documents))
            known = {
                "part": pa.repeat("train", len(place)), "sequence": place // SEGMENTS, "segment": place % SEGMENTS,
                "doc_id": _uuids(place * STRIDE % documents),
            }  # fmt: skip
            writer.write_table(_table(shape, known, len(place)), row_group_size=GROUP_OF_SPANS)


def _write(path: Path, shape: pa.Schema, known: Values, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(_table(shape, known, rows), path, compression="zstd", row_group_size=ROW_GROUP_ROWS)


def _table(shape: pa.Schema, known: Values, rows: int) -> pa.Table:
    """Returns a table whose unknown columns hold values of their type, a hundred different ones of a number."""
    numbers = np.arange(rows) * 7919 % 101
    columns = []
    for field in shape:
        if field.name in known:
            column = known[field.name]
            columns.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
        elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            columns.append(pa.array(numbers).cast(field.type))
        elif pa.types.is_list(field.type):
            columns.append(pa.ListArray.from_arrays(np.zeros(rows + 1, np.int32), pa.array([], field.type.value_type)))
        elif pa.types.is_string(field.type):
            columns.append(pa.repeat("made", rows))
        else:
            columns.append(pa.nulls(rows, field.type))
    return pa.table(columns, schema=shape)


def _ids(numbers: np.ndarray) -> np.ndarray:
    """Returns 16 bytes for each number, uint64 [n, 2], by the mixing function of SplitMix64."""
    mixed = (numbers.astype(np.uint64)[:, None] * np.uint64(2) + np.array([1, 2], np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _uuids(numbers: np.ndarray) -> pa.Array:
    storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(numbers), [None, pa.py_buffer(_ids(numbers).tobytes())])
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)
