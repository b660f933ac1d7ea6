"""Writes and reads Parquet files: zstd, doc_id as a UUID column, fsynced when closed.

Guarantee: the same rows in the same order give the same bytes with the same pyarrow.
Cost: one row group in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from stages.core.store.files import fsync

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 8192


def schema(**columns: str) -> pa.Schema:
    """Returns a schema from names and short types: uuid, string, int64, int32, float64, bool, list<string>, list<int64>.

    >>> schema(doc_id="uuid", text="string").names
    ['doc_id', 'text']
    """
    import pyarrow as pa

    types = {
        "uuid": pa.uuid(), "string": pa.string(), "int64": pa.int64(), "int32": pa.int32(), "float64": pa.float64(),
        "bool": pa.bool_(), "list<string>": pa.list_(pa.string()), "list<int64>": pa.list_(pa.int64()),
    }  # fmt: skip
    return pa.schema([(name, types[short]) for name, short in columns.items()])


def write_rows(path: Path, shape: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes mappings as one Parquet file and returns their number. Missing keys become null. A uuid value may be UUID or bytes."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    count, batch = 0, []
    with path.open("wb") as sink, pq.ParquetWriter(sink, shape, compression="zstd") as writer:
        for row in rows:
            batch.append(row)
            count += 1
            if len(batch) == ROW_GROUP_ROWS:
                writer.write_table(_table(batch, shape))
                batch = []
        if batch or not count:
            writer.write_table(_table(batch, shape))
    fsync(path)
    return count


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of one Parquet file as dicts (doc_id as UUID). Reads a row group at a time."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS, columns=list(columns) if columns else None):
            yield from batch.to_pylist()


def count_rows(path: Path) -> int:
    """Returns the number of rows of a Parquet file, from its footer."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _table(batch: list[Mapping[str, Any]], shape: pa.Schema) -> pa.Table:
    import pyarrow as pa

    columns = []
    for column in shape:
        values = [row.get(column.name) for row in batch]
        if column.type == pa.uuid():
            storage = [v.bytes if isinstance(v, UUID) else v for v in values]
            columns.append(pa.ExtensionArray.from_storage(pa.uuid(), pa.array(storage, pa.binary(16))))
        else:
            columns.append(pa.array(values, column.type))
    return pa.table(columns, schema=shape)
