"""text_index: makes the documents searchable for verbatim text, for `loam trace --text`.

The documents are divided into pieces in their order. Each piece has a sorted array of the places where a word begins. The text itself is
indexed and not the tokens of encode, so one index serves every tokenizer and mixture, and counts are exact
(stages/text/match/suffix_array.py gives the reason).
Guarantee: every document of decontaminate is in exactly one piece. The files do not depend on the number of workers. The workers together
sort at most SORTING_BYTES at a time, or one piece.
Cost: one pass over the documents for their sizes, one to sort them; time, memory and disk as stages/text/match/suffix_array.py says.
Source: OLMoTrace (Liu et al. 2025).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from pydantic import Field

from stages.core.contract.declaration import Artifact, Context, Outcome, Stage
from stages.core.contract.errors import StageError
from stages.core.tables.shards import Meter, run_shards
from stages.settings import StageConfig

if TYPE_CHECKING:
    import numpy as np

SORTING_BYTES = 6 << 30
"""Memory of all workers for the pieces that they sort; a worker has some more for the document that it reads."""
PIECES = "pieces"


@dataclass(frozen=True)
class RowRange:
    """Documents of one file: rows from `first` up to `end` (exclusive)."""

    documents: Path
    first: int
    end: int


@dataclass(frozen=True)
class PieceTask:
    """The documents of a piece, in order, and the size of their texts in UTF-8 with one more byte per document."""

    ranges: tuple[RowRange, ...]
    size: int


class IndexedPiece(TypedDict):
    """The result of `index_piece`: its documents, the words that begin in them, and the bytes of their texts in UTF-8."""

    documents: int
    words: int
    bytes: int


class TextIndex(StageConfig):
    """Settings of the text_index stage. By default there is no index of the text."""

    piece_mib: int = Field(0, ge=0, le=1024)
    """Text of a piece in UTF-8 (MiB); 0: no index. A worker needs six times as much memory while it sorts a piece. Fewer, larger pieces are
    searched faster; 256 makes four pieces of 250 million tokens. A larger document is a piece of its own."""

    @property
    def off(self) -> str:
        """Why the node is off; empty if an index is wanted."""
        return "" if self.piece_mib else "no index of the text is asked for: set text_index.piece_mib to 256"


def run(config: TextIndex, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes pieces/NNNNN/ and text_index.json, which counts them.

    Returns:
        The outcome. Its rows are the documents.

    Raises:
        StageError: There are no documents.
    """
    import os

    from stages.text.match.suffix_array import BYTES_PER_BYTE

    size = config.piece_mib << 20
    tasks = list(_planned(sorted((inputs["documents"].path / "documents").glob("*.parquet")), size))
    if not tasks:
        raise StageError("There are no documents to index.", where="documents", do="Look at the drop reasons of the stages before.")
    workers = max(1, min(ctx.runtime.workers, SORTING_BYTES // (BYTES_PER_BYTE * size)))
    own = replace(ctx, runtime=ctx.runtime.model_copy(update={"workers": workers}))
    shards = run_shards(index_piece, tasks, own, "text index")
    for shard in shards:
        folder = out / PIECES / f"{shard.index:05d}"
        folder.mkdir(parents=True)
        for path in sorted(shard.path.glob("*.bin")):
            os.link(path, folder / path.name)
    totals = {name: sum(int(shard.result[name]) for shard in shards) for name in ("documents", "words", "bytes")}
    described = {"pieces": len(shards), **totals}
    (out / "text_index.json").write_text(json.dumps(described, indent=1) + "\n")
    return Outcome(rows=totals["documents"], summary=described)


def index_piece(folder: Path, task: PieceTask, meter: Meter) -> IndexedPiece:
    """Writes the files of one piece.

    Returns:
        Its sizes.
    """
    from stages.text.match.suffix_array import build_piece

    documents = sum(part.end - part.first for part in task.ranges)
    meter.expect(documents)
    words = build_piece(folder, _texts(task, meter), task.size)
    return {"documents": documents, "words": words, "bytes": task.size - documents}


def _texts(task: PieceTask, meter: Meter) -> Iterator[tuple[bytes, bytes]]:
    """Yields doc_id and text of the documents of a piece."""
    from stages.core.tables.parquet import read_batches

    for part in task.ranges:
        for batch in read_batches(part.documents, ["doc_id", "text"], part.first, part.end):
            for row in batch.to_pylist():
                text = row["text"].encode()
                yield row["doc_id"].bytes, text
                meter.add(1, len(text))


def _planned(documents: list[Path], size: int) -> Iterator[PieceTask]:
    """Yields pieces of at most `size` bytes of text with one more byte per document, or of one document."""
    ranges: list[RowRange] = []
    used = 0
    for path in documents:
        sizes = (_text_bytes(path) + 1).tolist()
        first = 0
        for row, own in enumerate(sizes):
            if used and used + own > size:
                yield PieceTask((*ranges, *([RowRange(path, first, row)] if row > first else [])), used)
                ranges, first, used = [], row, 0
            used += own
        if len(sizes) > first:
            ranges.append(RowRange(path, first, len(sizes)))
    if ranges:
        yield PieceTask(tuple(ranges), used)


def _text_bytes(path: Path) -> np.ndarray:
    """Returns the size of each text of a documents file in UTF-8: int64 [rows]."""
    import numpy as np
    import pyarrow.compute as pc

    from stages.core.tables.parquet import read_batches

    sizes = (pc.binary_length(batch.column("text")) for batch in read_batches(path, ["text"]))
    return np.concatenate([np.empty(0, np.int64), *(one.to_numpy(zero_copy_only=False) for one in sizes)])


STAGE = Stage(
    name="text_index",
    config=TextIndex,
    run=run,
    inputs={"documents": "decontaminate"},
    summary={"bytes": "bytes of text", "words": "words"},
    output="text_index",
    unit="documents",
    does="the documents as an index of verbatim text, for `loam trace --text`; off unless its size is set",
    versions=("first version", "in scripts without spaces, each character is a word"),
    distributions=("pydivsufsort", "regex", "numba", "numpy", "pyarrow"),
)
