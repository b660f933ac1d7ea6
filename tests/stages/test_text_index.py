"""The index of verbatim text holds every document once, in pieces of a bounded size, with any number of workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages import text_index
from stages.core.contract.errors import StageError
from stages.core.tables import parquet
from stages.core.tables.parquet import read_rows
from stages.core.tables.shards import Meter
from stages.text.match.suffix_array import open_piece
from tests.conftest import run_stage
from tests.stages import made

MIB = 1 << 20
SHARDS = [["one text", "", "x" * (MIB - 9 - 1 - 1), "Ünicode 漢字"], [], ["y " * MIB, "small"], ["last", "one"]]
"""The first three fill a piece to the byte. One document is larger than a piece."""


def test_pieces_hold_every_document_in_order(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", SHARDS)
    found = run_stage(text_index.STAGE, {"piece_mib": 1}, {"documents": docs}, tmp_path / "home")
    rows = [row for path in sorted((docs.path / "documents").glob("*.parquet")) for row in read_rows(path, ["doc_id", "text"])]
    pieces = [open_piece(folder) for folder in sorted((found.path / "pieces").iterdir())]
    assert [len(piece.ids) for piece in pieces] == [3, 1, 1, 3]
    assert [UUID(bytes=one.tobytes()) for piece in pieces for one in piece.ids] == [row["doc_id"] for row in rows]
    texts = [piece.text[a : b - 1].tobytes().decode() for piece in pieces for a, b in zip(piece.starts, piece.starts[1:], strict=False)]
    assert texts == [row["text"] for row in rows] and [len(piece.text) for piece in pieces][0] == MIB
    sizes = {
        "pieces": 4,
        "documents": 8,
        "words": sum(len(piece.order) for piece in pieces),
        "bytes": sum(len(text.encode()) for text in texts),
    }
    assert found.summary == sizes == json.loads((found.path / "text_index.json").read_text()) and found.manifest["rows"] == 8
    assert sizes["words"] == 2 + 1 + 3 + MIB + 1 + 2


def test_the_array_is_sorted(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [["b a b", "a", "b a", "a\u0301 _x 7-7"]])
    found = run_stage(text_index.STAGE, {"piece_mib": 1}, {"documents": docs}, tmp_path / "home")
    piece = open_piece(found.path / "pieces" / "00000")
    raw = piece.text.tobytes()
    assert [raw[place:] for place in piece.order] == sorted(raw[place:] for place in piece.order)
    assert sorted(piece.order.tolist()) == [0, 2, 4, 6, 8, 10, 12, 16, 19, 21]


def test_workers_do_not_change_the_bytes(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", SHARDS)
    digests = {
        run_stage(text_index.STAGE, {"piece_mib": 1}, {"documents": docs}, tmp_path / f"home{n}", runtime={"workers": n}).manifest["digest"]
        for n in (1, 2)
    }
    assert len(digests) == 1


def test_a_piece_reads_only_the_row_groups_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: rows before or after the range, a file that is decoded from its beginning for every piece."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 4)
    docs = made.documents(tmp_path / "docs", [[f"text {n}" for n in range(14)]])
    (path,) = (docs.path / "documents").glob("*.parquet")
    read: list[int] = []
    right = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, size: int, row_groups: list[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
        read.extend(row_groups)
        return right(self, size, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    for first, end, groups in ((0, 14, [0, 1, 2, 3]), (5, 7, [1]), (6, 9, [1, 2]), (8, 8, []), (13, 14, [3])):
        read.clear()
        task = text_index.PieceTask((text_index.RowRange(path, first, end),), 0)
        texts = [text for _, text in text_index._texts(task, Meter(tmp_path / "meter"))]
        assert texts == [f"text {n}".encode() for n in range(first, end)] and read == groups


def test_workers_share_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: as many sorting workers as the machine has, whatever the size of a piece."""
    asked = []

    def noted(work: object, tasks: object, ctx: text_index.Context, label: str) -> list[object]:
        asked.append(ctx.runtime.workers)
        return []

    docs = made.documents(tmp_path / "docs", [["a text"]])
    monkeypatch.setattr(text_index, "run_shards", noted)
    for mib, workers in ((1024, 8), (512, 8), (256, 8), (1, 8), (1, 3)):
        run_stage(text_index.STAGE, {"piece_mib": mib}, {"documents": docs}, tmp_path / f"{mib}-{workers}", runtime={"workers": workers})
    assert asked == [1, 2, 4, 8, 3]


def test_no_documents_is_refused(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [[]])
    with pytest.raises(StageError, match="There are no documents to index"):
        run_stage(text_index.STAGE, {"piece_mib": 1}, {"documents": docs}, tmp_path / "home")
