"""Checkpoints: every rank writes its partitions of the fp32 weights and of the optimizer's state as one safetensors file.

A folder: shards/NNNNN.safetensors (keys "<parameter>|weight" and, of AdamW, "…|exp_avg", "…|exp_avg_sq": flat fp32 partitions),
trainer.json (step, optimizer steps, ranks, shapes, fingerprint of the job) and checkpoint.json (bytes and sha256 of all
other files), written after a barrier, fsynced with the folders, and only then the folder is renamed into place.
Guarantee: a folder without a true checkpoint.json is no checkpoint; nothing is read of a checkpoint whose files are not the recorded
ones; a resume at the same number of ranks is bit-exact, at another the same within rounding of the sums over ranks. No pickle.
Cost: 4 bytes per parameter and tensor (12 with AdamW); opening one reads it once, shared out among the ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stages.lm.train.engine import Engine, local_state, optimizer_steps
from stages.lm.train.optimizer_adamw import AdamW

FRESH = ("weight", *AdamW.tensors())  # what a checkpoint of given weights holds of every parameter
OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how Rust's io::Error ends
KEEP = 2  # snapshots kept: the last, and the one before it in case the last is damaged


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another job."""


@dataclass(frozen=True)
class Trainer:
    """What is known of a checkpoint beside its tensors. step: training steps done. optimizer_steps: updates the optimizer made."""

    step: int
    optimizer_steps: int
    ranks: int
    shapes: dict[str, list[int]]
    fingerprint: str


def save(engine: Engine, folder: Path, step: int, fingerprint: str) -> None:
    """Writes a checkpoint at `folder`, all ranks together. `folder` appears whole or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    if engine.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "shards").mkdir(parents=True)
    engine.barrier()
    shard = partial / "shards" / f"{engine.rank:05d}.safetensors"
    _save_shard({f"{name}|{what}": tensor.detach().cpu().contiguous().clone() for name, what, tensor in local_state(engine)}, shard)
    (partial / f"{engine.rank:05d}.sum").write_text(json.dumps(describe(shard, partial)))
    engine.barrier()
    if engine.rank == 0:
        shapes = {name: list(param.ds_shape) for name, param in engine.named.items()}
        trainer = Trainer(step, optimizer_steps(engine, step), engine.ranks, shapes, fingerprint)
        sums = [partial / f"{rank:05d}.sum" for rank in range(engine.ranks)]
        files = [json.loads(path.read_text()) for path in sums]
        _write_json(partial / "trainer.json", trainer.__dict__)
        _write_json(partial / "checkpoint.json", {"format": 1, "files": [*files, describe(partial / "trainer.json", partial)]})
        for path in sums:
            path.unlink()
        for inner in (partial / "shards", partial):
            _sync(inner)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
        _sync(folder.parent)
    engine.barrier()


def write_fresh(folder: Path, shapes: dict[str, list[int]], value: Callable[[str, int, int], Tensor], shard_bytes: int) -> None:
    """Writes a checkpoint of given weights, at step 0 with AdamW's moments of zero. value: (name, begin, end) -> flat fp32 slice of a parameter.

    It has as many shards, as if written by so many ranks, as it needs for none to exceed about `shard_bytes`, held in memory at once.
    """
    total = 4 * len(FRESH) * sum(torch.Size(shape).numel() for shape in shapes.values())
    ranks = max(1, -(-total // shard_bytes))
    (folder / "shards").mkdir(parents=True)
    files = []
    for rank in range(ranks):
        tensors: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            size = torch.Size(shape).numel()
            each = -(-size // ranks)
            begin, end = min(rank * each, size), min((rank + 1) * each, size)
            partition = torch.zeros(each)
            if begin < end:
                partition[: end - begin] = value(name, begin, end)
            tensors |= {f"{name}|{what}": partition if what == "weight" else torch.zeros(each) for what in FRESH}
        path = folder / "shards" / f"{rank:05d}.safetensors"
        _save_shard(tensors, path)
        files.append(describe(path, folder))
    _write_json(folder / "trainer.json", Trainer(0, 0, ranks, shapes, "").__dict__)
    _write_json(folder / "checkpoint.json", {"format": 1, "files": [*files, describe(folder / "trainer.json", folder)]})


def describe(path: Path, root: Path) -> dict[str, Any]:
    """Path below root, bytes and sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": path.relative_to(root).as_posix(), "bytes": path.stat().st_size, "sha256": digest}


def verify(folder: Path, part: int = 0, parts: int = 1) -> Trainer:
    """Checks the files of a checkpoint against checkpoint.json; raises CheckpointError naming the file that differs.

    part, parts: of so many callers this one, each of which reads its share of the shards; all look at all sizes.
    """
    for number, entry in enumerate(_recorded(folder)):
        path = folder / entry["path"]
        if not path.exists():
            raise CheckpointError(f"Checkpoint {folder.name} is damaged: {entry['path']} is missing.")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"Checkpoint {folder.name} is damaged: {entry['path']} has {size} bytes, not {entry['bytes']}.")
        mine = number % parts == part or entry["path"] == "trainer.json"
        if mine and describe(path, folder)["sha256"] != entry["sha256"]:
            raise CheckpointError(f"Checkpoint {folder.name} is damaged: {entry['path']} does not have the sha256 that was recorded.")
    return read_trainer(folder)


def _recorded(folder: Path) -> list[dict[str, Any]]:
    """The entries of checkpoint.json. Raises CheckpointError where it is missing, damaged, or lacks a file that is there."""
    record = folder / "checkpoint.json"
    if not record.exists():
        raise CheckpointError(f"{folder.name} is no checkpoint: it has no checkpoint.json.")
    try:
        entries = [
            {"path": str(e["path"]), "bytes": int(e["bytes"]), "sha256": str(e["sha256"])} for e in json.loads(record.read_bytes())["files"]
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"Checkpoint {folder.name} is damaged: checkpoint.json cannot be read ({error}).") from None
    named = {entry["path"] for entry in entries}
    for path in (folder / "trainer.json", *sorted((folder / "shards").glob("*.safetensors"))):
        if (name := path.relative_to(folder).as_posix()) not in named:
            raise CheckpointError(f"Checkpoint {folder.name} is damaged: {name} is not in checkpoint.json.")
    return entries


def read_trainer(folder: Path) -> Trainer:
    """trainer.json of a checkpoint; raises CheckpointError where there is none."""
    if not (folder / "trainer.json").exists():
        raise CheckpointError(f"Checkpoint {folder.name} has no trainer.json.")
    try:
        return Trainer(**json.loads((folder / "trainer.json").read_bytes()))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"Checkpoint {folder.name} is damaged: trainer.json cannot be read ({error}).") from None


def latest_good(root: Path, fingerprint: str, say: Callable[[str], None]) -> tuple[Path, Trainer] | None:
    """The newest undamaged snapshot of this job below root, or None. `say` hears why others were passed over."""
    for folder in sorted(root.glob("step-*"), reverse=True):
        if folder.suffix == ".partial":
            continue
        try:
            trainer = verify(folder)
        except CheckpointError as error:
            say(f"{error} Falling back to the snapshot before it.")
            continue
        if trainer.fingerprint == fingerprint:
            return folder, trainer
        say(f"Snapshot {folder.name} is of another job (model, data or settings differ); it is not used.")
    return None


def prune(root: Path, keep: int = KEEP) -> None:
    """Deletes all snapshots but the newest `keep`."""
    folders = sorted(path for path in root.glob("step-*") if path.suffix != ".partial")
    for folder in folders[:-keep]:
        shutil.rmtree(folder)


def reader(folder: Path, stack: ExitStack, part: int = 0, parts: int = 1) -> Callable[[str, str, int, int], Tensor]:
    """`partition(name, what, begin, length)` over a checkpoint written by any number of ranks; for `engine.assign`.

    Verifies the checkpoint first; where several open it together, each a part of it (see verify): the job ends when one finds damage.
    The shards stay open (memory-mapped) as long as `stack`; only the slices asked for are read.
    """
    trainer = verify(folder, part, parts)
    shards = [stack.enter_context(safe_open(path, "pt")) for path in sorted((folder / "shards").glob("*.safetensors"))]
    if len(shards) != trainer.ranks:
        raise CheckpointError(f"Checkpoint {folder.name} was written by {trainer.ranks} ranks, but holds {len(shards)} shards.")

    def partition(name: str, what: str, begin: int, length: int) -> Tensor:
        if name not in trainer.shapes:
            raise CheckpointError(f"Checkpoint {folder.name} has no parameter {name}; it is of another model.")
        key, full = f"{name}|{what}", torch.Size(trainer.shapes[name]).numel()
        out = torch.zeros(length)
        each = shards[0].get_slice(key).get_shape()[0]
        for number, shard in enumerate(shards):
            first, last = max(begin, number * each), min(begin + length, (number + 1) * each, full)
            if first < last:
                out[first - begin : last - begin] = shard.get_slice(key)[first - number * each : last - number * each]
        return out

    return partition


def consolidate(folder: Path) -> dict[str, Tensor]:
    """The full fp32 weights of a checkpoint, by parameter name. Cost: 4 bytes per parameter."""
    with ExitStack() as stack:
        partition = reader(folder, stack)
        trainer = read_trainer(folder)
        return {n: partition(n, "weight", 0, torch.Size(shape).numel()).view(shape) for n, shape in trainer.shapes.items()}


def from_values(value: Callable[[str], Tensor]) -> Callable[[str, str, int, int], Tensor]:
    """`partition(…)` over whole parameters, `value(name)`, one in memory at a time; for fresh weights."""

    def partition(name: str, what: str, begin: int, length: int) -> Tensor:
        assert what == "weight", "fresh weights have no optimizer state"
        piece = value(name).flatten()[begin : begin + length]
        return torch.nn.functional.pad(piece, (0, length - piece.numel()))

    return partition


def _save_shard(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes a safetensors file and makes it durable. Raises OSError for faults of the disk, which safetensors words itself."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        if not (found := OS_ERROR.search(str(error))):
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
    _sync(path)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
