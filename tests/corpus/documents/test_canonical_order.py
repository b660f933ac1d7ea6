"""Canonical order over files, and text columns as they lie in memory."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np

from stages.corpus.documents.canonical_order import Part, canonical, file_array, text_batches, utf8
from stages.record.tables.parquet import schema, write_rows

SHAPE = schema(doc_id="uuid", source="string", url="string", text="string")
ROWS = [
    (1, "b", "http://a", "Ä"),
    (2, "a", "http://b", ""),
    (3, "c", "http://a", "drei 🙂"),
    (5, "a", "http://a", "x"),
    (4, "a", "http://a", "y"),
]


def part(path: Path, numbers: list[int], corpus: str = "") -> Part:
    rows = [{"doc_id": UUID(int=i), "source": s, "url": u, "text": t} for i, s, u, t in (ROWS[n] for n in numbers)]
    write_rows(path / "d.parquet", SHAPE, rows)
    np.save(path / "number.npy", np.array([row["doc_id"].int for row in rows]))  # type: ignore[attr-defined]
    return Part(path / "d.parquet", {"number": path / "number.npy"}, corpus)


def test_the_order_is_priority_source_url_and_doc_id_however_files_are_cut(tmp_path: Path) -> None:
    for cut, files in enumerate([[[0, 1, 2, 3, 4]], [[3, 1], [], [4, 0, 2]]]):
        parts = [part(tmp_path / f"{cut}-{i}", numbers) for i, numbers in enumerate(files)]
        for priority, expected in (((), [4, 5, 2, 1, 3]), (("c", "b"), [3, 1, 4, 5, 2])):
            corpus = canonical(parts, priority)
            assert corpus.load("number").tolist() == expected
            assert [UUID(bytes=i.tobytes()).int for i in corpus.ids] == expected
            assert corpus.order[corpus.numbers].tolist() == corpus.numbers[corpus.order].tolist() == [0, 1, 2, 3, 4]


def test_existing_corpora_come_first_in_their_own_order(tmp_path: Path) -> None:
    corpus = canonical([part(tmp_path / "a", [2, 0], "dedup/a"), part(tmp_path / "b", [3], "dedup/b"), part(tmp_path / "c", [1, 4])], ())
    assert corpus.load("number").tolist() == [3, 1, 5, 4, 2]
    assert (corpus.known, corpus.rows(2)) == (3, slice(3, 5))
    assert [corpus.corpus_of(i) for i in range(5)] == ["dedup/a", "dedup/a", "dedup/b", None, None]


def test_texts_come_as_utf8_and_unwanted_row_groups_are_not_read(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = part(tmp_path / "a", [0, 1, 2, 3, 4]).documents
    pq.write_table(pq.read_table(path), path, row_group_size=2)
    seen = []
    for start, column in text_batches(path):
        data, starts = utf8(column[1:])
        seen += [(start + 1 + i, data[a:b].tobytes().decode()) for i, (a, b) in enumerate(zip(starts[:-1], starts[1:], strict=True))]
    assert seen == [(1, ""), (3, "x")]
    assert [start for start, _ in text_batches(path, np.array([0, 4]))] == [0, 4]


def test_an_array_in_a_file_may_be_empty(tmp_path: Path) -> None:
    assert file_array(tmp_path / "a", (0, 3), np.uint32).shape == (0, 3)
    assert file_array(tmp_path / "b", (2, 3), np.uint32).tolist() == [[0] * 3] * 2
