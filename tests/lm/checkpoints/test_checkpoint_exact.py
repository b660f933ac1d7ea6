"""A snapshot that several ranks write together, and which of several snapshots is kept, read or named, whatever order a disk lists them in."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from stages.lm.checkpoints import checkpoint
from stages.lm.checkpoints.checkpoint import CheckpointError
from stages.lm.zero.engine_state import LocalPart
from tests.lm.checkpoints.test_checkpoint import SHAPES, values, written


@dataclass
class Rank:
    """An engine of two ranks without DeepSpeed. Wherever it waits, it notes the files that are there, and the other rank goes on."""

    rank: int
    root: Path
    other: Callable[[int], None] = lambda _: None
    seen: list[set[str]] = field(default_factory=list)
    ranks = 2

    def barrier(self) -> None:
        self.seen.append({path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()})
        self.other(len(self.seen))

    @property
    def named(self) -> dict[str, object]:
        return {}


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checkpoint, "local_state", lambda engine: [LocalPart("a", "weight", 3 * engine.rank, torch.full((3,), float(engine.rank)))]
    )
    monkeypatch.setattr(checkpoint, "optimizer_steps", lambda engine, step: step)


def both(folder: Path) -> tuple[Rank, Rank]:
    """Saves a checkpoint by two ranks in turn: the second one writes while the first waits for it."""
    second = Rank(1, folder.parent)
    first = Rank(0, folder.parent, lambda met: checkpoint.save(second, folder, 4, "job") if met == 2 else None)  # type: ignore[arg-type]
    checkpoint.save(first, folder, 4, "job")  # type: ignore[arg-type]
    return first, second


def test_ranks_wait_for_the_folder_for_all_shards_and_for_the_finished_checkpoint(tmp_path: Path, states: None) -> None:
    first, second = both(tmp_path / "step-4")
    own = [{f"step-4.partial/shards/0000{rank}.safetensors", f"step-4.partial/0000{rank}.sum"} for rank in (0, 1)]
    done = {f"step-4/{name}" for name in ("checkpoint.json", "trainer.json", "shards/00000.safetensors", "shards/00001.safetensors")}
    assert first.seen == [set(), own[0], done], "before the shards, before the record, after the rename; no .sum is left"
    assert second.seen == [own[0], own[0] | own[1], own[0] | own[1]]
    assert json.loads((tmp_path / "step-4" / "checkpoint.json").read_text())["format"] == 2
    assert checkpoint.verify(tmp_path / "step-4").ranks == 2


def test_a_snapshot_replaces_what_a_killed_run_left_under_both_names(tmp_path: Path, states: None) -> None:
    for name in ("step-4", "step-4.partial"):
        (tmp_path / name / "shards").mkdir(parents=True)
        (tmp_path / name / "shards" / "00007.safetensors").write_bytes(b"old")
    both(tmp_path / "step-4")
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]
    assert checkpoint.verify(tmp_path / "step-4").step == 4


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
    assert json.loads((tmp_path / "c" / "checkpoint.json").read_text())["format"] == 2


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
