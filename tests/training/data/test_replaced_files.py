"""Files that ranks read: those that a second driver writes again stay as they are where their bytes are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stages.training.data.reader import SequenceReader, write_sequence_files


def written(folder: Path, last: int) -> list[int]:
    """Writes sequences, the last token of which is given. Returns the inodes of their files."""
    items = [(np.array([1, 2, 3]), np.ones(3, np.uint8)), (np.array([4, last]), np.ones(2, np.uint8))]
    write_sequence_files(folder, items, np.array([0, 1]), 8, 0, np.zeros((2, 1)))
    return [(folder / name).stat().st_ino for name in ("tokens.bin", "mask.bin", "segments.npy", "sequences.npy", "references.npy")]


def test_what_ranks_have_open_changes_under_no_reader(tmp_path: Path) -> None:
    """Catches: a file that is written in place while a rank that a killed driver left maps it into its memory."""
    before = written(tmp_path, 5)
    files = write_sequence_files(tmp_path, [(np.array([1]), np.ones(1, np.uint8))], np.array([0]), 8, 0)
    assert written(tmp_path, 5)[0] != before[0], "others are replaced"
    before = written(tmp_path, 5)
    reader = SequenceReader(files)
    opened = reader.batch([1]).tokens.copy()
    assert written(tmp_path, 5) == before
    after = written(tmp_path, 6)
    assert after[0] != before[0] and after[1:] == before[1:], "only what differs is another file"
    assert (reader.batch([1]).tokens == opened).all() and SequenceReader(files).batch([1]).tokens[0, 1] == 6
    assert not list(tmp_path.glob("*.partial"))
