"""A snapshot that several ranks write together, and which of several snapshots is kept, read or named, whatever order a disk lists them in."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from stages.training.checkpoints import checkpoint
from stages.training.checkpoints.checkpoint import CheckpointError
from tests.training.checkpoints.test_checkpoint import SHAPES, values, written


def test_weights_are_asked_for_where_a_shard_has_some_and_the_record_has_its_format(tmp_path: Path) -> None:
    """With five shards, a parameter of one element is in the first one, and one of three elements in the first three."""
    given, asked = values("weight"), list[tuple[str, int, int]]()

    def value(name: str, begin: int, end: int) -> torch.Tensor:
        asked.append((name, begin, end))
        return given[name][begin:end]

    checkpoint.write_fresh(tmp_path / "c", SHAPES, value, 34)
    assert all(begin < end for _, begin, end in asked)
    assert [slice_ for slice_ in asked if slice_[0] != "matrix.weight"] == [
        ("norm.weight", 0, 1), ("one.weight", 0, 1), ("norm.weight", 1, 2), ("norm.weight", 2, 3),
    ]  # fmt: skip
    assert json.loads((tmp_path / "c" / "checkpoint.json").read_text())["format"] == 3


def test_shards_are_joined_in_the_order_of_their_numbers(tmp_path: Path, backwards: None) -> None:
    folder = written(tmp_path / "c", 4)
    with ExitStack() as stack:
        assert torch.equal(checkpoint.reader(folder, stack)("matrix.weight", "weight", 0, 35), values("weight")["matrix.weight"])


def test_of_several_files_without_a_record_the_first_is_named(tmp_path: Path, backwards: None) -> None:
    folder = written(tmp_path / "c", 2)
    for number in (2, 3, 4):
        (folder / "shards" / f"0000{number}.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="shards/00002.safetensors is not in checkpoint.json"):
        checkpoint.verify(folder)
