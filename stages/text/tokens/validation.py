"""The validation documents of a mixture, and a sample of its training pieces, as token ids.

Guarantee: a document comes whole, from its beginning-of-text token to its last token of text (the end-of-text token is left
out: it encodes no byte). Cost: the validation tokens in memory; training tokens are read by memory map.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np


@dataclass(frozen=True)
class Validation:
    """doc_ids, ids (int64, one array per document), bytes of text and predicted tokens, one entry per document."""

    doc_ids: tuple[UUID, ...]
    ids: tuple[np.ndarray, ...]
    bytes: np.ndarray
    tokens: np.ndarray


def read_validation(mixture: Path, tokens: Path) -> Validation:
    """The documents of a mixture's validation part, in the order of the shards. Documents without any text are left out."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    held = pq.read_table(mixture / "row_spans" / "validation.parquet", columns=["shard", "start"])
    shard, start = held.column("shard").to_numpy(), held.column("start").to_numpy()
    doc_ids, ids, sizes = [], [], []
    for number in np.unique(shard):
        spans = pq.read_table(tokens / "spans" / f"{number:05d}.parquet")
        wanted = spans.filter(pc.is_in(spans.column("start"), value_set=_array(start[shard == number])))
        flat = open_tokens(tokens, int(number))
        for row in wanted.to_pylist():
            if row["bytes"]:
                doc_ids.append(row["doc_id"])
                ids.append(np.asarray(flat[row["start"] : row["start"] + row["length"] - 1], dtype=np.int64))
                sizes.append(row["bytes"])
    return Validation(tuple(doc_ids), tuple(ids), np.array(sizes, np.int64), np.array([len(i) - 1 for i in ids], np.int64))


def read_training_pieces(mixture: Path, tokens: Path, limit: int, seed: int) -> tuple[list[np.ndarray], int]:
    """(pieces, vocabulary size): all training pieces as ids, or a random choice of them that holds at most `limit` tokens."""
    pieces = np.load(mixture / "train" / "pieces.npy", mmap_mode="r")
    order = np.arange(len(pieces))
    if int(pieces[:, 2].sum()) > limit:
        order = np.random.default_rng(seed).permutation(len(pieces))
        order = np.sort(order[: max(int(np.searchsorted(np.cumsum(pieces[order, 2]), limit, side="right")), 1)])
    flat = {int(shard): open_tokens(tokens, int(shard)) for shard in np.unique(pieces[order, 0])}
    chosen = [np.asarray(flat[int(s)][start : start + length], dtype=np.int64) for s, start, length in pieces[order].tolist()]
    return chosen, int(_described(tokens)["vocab_size"])


def open_tokens(tokens: Path, shard: int) -> np.ndarray:
    """One shard of a tokens artifact, memory-mapped."""
    dtype = "<u2" if _described(tokens)["dtype"] == "uint16" else "<u4"
    return np.memmap(tokens / "tokens" / f"{shard:05d}.bin", dtype=dtype, mode="r")


def _described(tokens: Path) -> dict:
    return json.loads((tokens / "tokens.json").read_text())


def _array(values: np.ndarray) -> object:
    import pyarrow as pa

    return pa.array(values)
