"""Divides documents into buckets by their columns: language, host, or a signal that the filter stored.

Guarantee: every document is in exactly one bucket of each division. Equal values are in one bucket. The order of the documents does not matter.
Cost: the column and 20 bytes per document in memory; one hash join by doc_id.
Source: the upsampling curves of Olmo 3 (arXiv 2512.13961).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from stages.text.tokens.mix_settings import Buckets

HOST = "host"
HIDDEN = ("doc_id", "text", "url", "verdict", "reason")
"""Columns that buckets cannot be made of; the host of `url` can."""


class BucketError(ValueError):
    """Buckets that the documents cannot have: an unknown column, or numbers where texts are. The message names the column."""


@dataclass(frozen=True)
class DocumentBuckets:
    """The buckets of all documents.

    Attributes:
        number: Bucket of each document, int64 [documents].
        names: Name of each bucket.
        factors: Factor of each bucket.
    """

    number: np.ndarray
    names: tuple[str, ...]
    factors: tuple[float, ...]


def read_columns(names: Sequence[str], tables: Sequence[Sequence[Path]], doc_id: pa.Array) -> dict[str, pa.Array]:
    """Returns columns of the documents: name -> one value per document, null where no table has the document.

    Args:
        names: Names of the columns; HOST is the host of the column `url`.
        tables: The Parquet files of each table, with a column doc_id. The first table that has a column gives it.
        doc_id: The documents, fixed_size_binary[16].

    Raises:
        BucketError: No table has a column.
    """
    import pyarrow.parquet as pq

    columns = [set(pq.read_schema(files[0]).names) if files else set() for files in tables]
    found: dict[str, pa.Array] = {}
    for name in names:
        at = next((i for i, there in enumerate(columns) if _stored(name) in there and (name == HOST or name not in HIDDEN)), None)
        if at is None:
            known = sorted({HOST for there in columns if "url" in there}.union(*columns) - set(HIDDEN))
            raise BucketError(f"The documents have no column {name!r}. Columns that are stored: {', '.join(known) or 'none'}.")
        found[name] = _joined(tables[at], name, doc_id)
    return found


def bucket_documents(divisions: Sequence[Buckets], columns: Mapping[str, pa.Array], pool: np.ndarray, documents: int) -> DocumentBuckets:
    """Returns the buckets of the documents; without divisions, one bucket without a name.

    Args:
        divisions: The divisions, which are combined.
        columns: Name -> column, one value per document.
        pool: The documents that are trained on. Buckets with equally many documents count these.
        documents: Number of all documents.
    """
    number = np.zeros(documents, np.int64)
    names: tuple[str, ...] = ("",)
    factors: tuple[float, ...] = (1.0,)
    for division in divisions:
        own, own_names, own_factors = _divided(division, columns[division.by], pool)
        number = number * len(own_names) + own
        names = tuple(f"{one} {two}".strip() for one in names for two in own_names)
        factors = tuple(one * two for one in factors for two in own_factors)
    return DocumentBuckets(number, names, factors)


def _divided(division: Buckets, column: pa.Array, pool: np.ndarray) -> tuple[np.ndarray, tuple[str, ...], tuple[float, ...]]:
    """Returns (bucket of each document, names, factors) of one division; the last bucket is that of all other documents.

    Raises:
        BucketError: The division is for numbers and its column has texts, or the other way round, or no document has a value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if text != bool(division.factors):
        kind, needed = ("texts", "factors") if text else ("numbers", "upsampling")
        raise BucketError(f"The column {division.by!r} has {kind}, so its buckets need {needed}.")
    if column.take(pa.array(pool)).null_count == len(pool):
        raise BucketError(f"No document has a value in the column {division.by!r} (quality_score needs a classifier: train_quality).")
    if text:
        values = list(division.factors)
        number = pc.fill_null(pc.index_in(column, pa.array(values, column.type)), len(values)).to_numpy(zero_copy_only=False)
        names = tuple(f"{division.by}={value}" for value in values)
        return number.astype(np.int64), (*names, f"{division.by}=other"), (*division.factors.values(), division.other)
    numbers = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)  # null becomes NaN
    edges = np.array(division.edges or _equal_parts(numbers[pool], len(division.upsampling)), np.float64)
    number = np.searchsorted(edges, numbers, side="right").astype(np.int64)
    number[np.isnan(numbers)] = len(division.upsampling)
    return number, (*_ranges(division.by, edges), f"{division.by}=none"), (*division.upsampling, division.other)


def _equal_parts(numbers: np.ndarray, parts: int) -> list[float]:
    """Returns the parts - 1 lowest values of the upper parts, if the values are divided into parts with equally many."""
    known = np.sort(numbers[~np.isnan(numbers)])
    return [float(known[len(known) * part // parts]) for part in range(1, parts)] if len(known) else [0.0] * (parts - 1)


def _ranges(name: str, edges: np.ndarray) -> tuple[str, ...]:
    """Returns the names of the buckets between edges."""
    bounds = [f"{edge:.6g}" for edge in edges]
    if not bounds:
        return (f"{name}=any",)
    between = [f"{name}={low}..{high}" for low, high in zip(bounds, bounds[1:], strict=False)]
    return (f"{name}<{bounds[0]}", *between, f"{name}>={bounds[-1]}")


def _stored(name: str) -> str:
    """Returns the column that a column of buckets is made of."""
    return "url" if name == HOST else name


def _joined(files: Sequence[Path], name: str, doc_id: pa.Array) -> pa.Array:
    """Returns the column `name` of Parquet files in the order of `doc_id`; null where the files do not have the document.

    Texts become large_string: a column of more than 2 GiB does not fit into one array of strings. Hosts are taken file by file, so the URLs of
    all documents are never in memory together.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parts = []
    for file in files:
        part = pq.read_table(file, columns=["doc_id", _stored(name)])
        column = part.column(_stored(name))
        if pa.types.is_string(column.type):
            column = column.cast(pa.large_string())
        parts.append(pa.table({"doc_id": part.column("doc_id"), "value": _hosts(column) if name == HOST else column}))
    table = pa.concat_tables(parts)
    keys = table.column("doc_id").combine_chunks()
    rows = pc.index_in(doc_id, keys.storage if isinstance(keys, pa.ExtensionArray) else keys)
    return table.column("value").combine_chunks().take(rows)


def _hosts(urls: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the hosts of URLs in lower case, without user and port; null where there is none."""
    import pyarrow.compute as pc

    found = pc.extract_regex(urls, r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>[^/?#:@]+)")
    return pc.utf8_lower(pc.struct_field(found, "host"))
