"""The estimate of a training's memory against the memory that its ranks have had: `python -m tests.bench.bench_memory`.

Each row is a training of three steps. Measured is the most that a rank has had resident, the larger of both ranks. PROCESS_BYTES is taken off
both sides: the memory of a rank that has imported everything and trains almost nothing, which the first line measures again. The shapes
differ in what dominates: weights, activations, vocabulary, micro-batch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from flows.cli.printing import print_table
from stages.tokens.sequences.mixture import SequenceRange
from stages.training.data.reader import write_sequence_files
from stages.training.job.job import Machine, RankJob
from stages.training.launch.launch import launch
from stages.training.model.config import ModelConfig
from stages.training.model.training_memory import PROCESS_BYTES
from stages.training.run.training_run import rank_bytes
from tests.bench.probe import probe
from tests.training.made import training

RANKS, STEPS = 2, 3


@dataclass(frozen=True)
class Shape:
    """A model and the tokens of a forward pass."""

    model: ModelConfig
    micro: int


def shape(layers: int, hidden: int, ffn: int, vocab: int, seq_len: int, micro: int) -> Shape:
    """Returns a shape with heads of 64 channels, half as many of them for keys and values."""
    heads = hidden // 64
    config = ModelConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=heads // 2, intermediate_size=ffn,
        vocab_size=vocab, max_position_embeddings=seq_len,
    )  # fmt: skip
    return Shape(config, micro)


SHAPES = {
    "nothing": shape(1, 128, 64, 256, 64, 1),
    "weights": shape(8, 512, 1536, 2048, 128, 1),
    "activations": shape(8, 256, 768, 1024, 512, 8),
    "vocabulary": shape(2, 256, 768, 65536, 256, 2),
    "micro-batch": shape(4, 128, 384, 4096, 256, 64),
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {"zero_stage": stage}) for name in list(SHAPES)[1:] for stage in (3, 1)),
    *(("activations", {"recompute": value}) for value in ("feed_forward", "block")),
    *((name, {"zero_stage": stage, "precision": "bf16"}) for name in ("weights", "activations", "vocabulary") for stage in (3, 1)),
    *((name, {"zero_stage": stage, "ranks": 1}) for name in ("weights", "vocabulary") for stage in (3, 1)),
]  # fmt: skip


def job_of(name: str, folder: Path, given: dict[str, Any]) -> RankJob:
    """Returns the job of a case, with its files below `folder`."""
    ranks: int = given.get("ranks", RANKS)
    precision: Literal["fp32", "bf16"] = given.get("precision", "fp32")
    chosen = SHAPES[name]
    length, batch = chosen.model.max_position_embeddings, ranks * chosen.micro
    draw = np.random.default_rng(1)
    items = [(draw.integers(0, chosen.model.vocab_size, length), np.ones(length, np.uint8)) for _ in range(batch)]
    files = write_sequence_files(folder / "sequences", items, np.arange(batch), length, 0)
    machine = Machine(
        ranks, "cpu", chosen.micro, chosen.micro, recompute=given.get("recompute", "none"), zero_stage=given.get("zero_stage", 3)
    )
    scratch = folder / "scratch"
    scratch.mkdir()
    return RankJob(
        model=chosen.model, settings=training(global_batch_size=batch, learning_rate=1e-3, precision=precision), train=files, machine=machine,
        seed=1, scratch=str(scratch), out=str(folder / "out"), ranges=(SequenceRange(0, batch, length),), steps=STEPS,
    )  # fmt: skip


def measured(job: RankJob) -> int:
    """Returns the most memory that a rank has had resident, in bytes; of several ranks, that of the one with most."""
    started = subprocess.Popen

    def start(command: list[str], **given: Any) -> Any:
        return started([word.replace("stages.training.loop.rank", "tests.bench.measured_rank") for word in command], **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", start)
        launch(job, lambda rank, event: None, os.environ)
    return max(int((Path(job.scratch) / f"memory-{rank}.txt").read_text()) for rank in range(job.machine.ranks))


def rows(cases: int) -> Iterator[dict[str, str]]:
    """Yields one row per case, of the first `cases`."""
    for name, given in CASES[:cases]:
        with tempfile.TemporaryDirectory() as folder:
            job = job_of(name, Path(folder), given)
            found = measured(job) - PROCESS_BYTES
        estimate = rank_bytes(job) - PROCESS_BYTES
        yield {
            "shape": name, "ranks": str(job.machine.ranks), "ZeRO": str(job.machine.zero_stage), "precision": job.settings.precision,
            "recompute": job.machine.recompute, "estimate, MB": f"{estimate / 1e6:.0f}", "measured, MB": f"{found / 1e6:.0f}",
            "ratio": f"{estimate / found:.2f}",
        }  # fmt: skip


def main() -> None:
    """Prints the tables: the memory of a rank that trains almost nothing, and the estimates."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_memory")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the cases, the first ones")
    cases: int = parser.parse_args().cases
    print(probe())
    with tempfile.TemporaryDirectory() as folder:
        print(f"a rank with a model of almost no size: {measured(job_of('nothing', Path(folder), {})) / 1e6:.0f} MB", flush=True)
    print_table(list(rows(cases)))


if __name__ == "__main__":
    main()
