"""Trains in a source tree with the toys: `train.py job FOLDER RANKS` a small job, `train.py stage HOME` the pretrain stage."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TOYS: dict[str, Any] = {
    "schedule": {"name": "polynomial", "power": 2.0}, "optimizer": {"name": "momentum", "momentum": 0.8},
    "loss": {"name": "z", "weight": 0.01}, "weight_decay": 0.0,
}  # fmt: skip
STEPS, BATCH, SEQUENCES = 8, 4, 13


def small(folder: Path, ranks: int, parts: dict[str, Any]) -> Any:
    """Returns a job of eight steps. parts: schedule, optimizer and loss."""
    from stages.tokens.sequences.mixture import SequenceRange
    from stages.training.data.reader import write_sequence_files
    from stages.training.job.job import Machine, RankJob
    from stages.training.model.config import ModelConfig
    from tests.training.made import training
    from tests.training.plain import items_of

    sequences = write_sequence_files(folder / "train", *items_of(SEQUENCES, 1), 32, 0)
    held_out = write_sequence_files(folder / "validation", *items_of(5, 2), 32, 0)
    settings = training(
        global_batch_size=BATCH, learning_rate=0.05, min_lr_frac=0.1, warmup_steps=2, eval_every_steps=4, checkpoint_every_steps=4, **parts
    )
    return RankJob(
        model=ModelConfig(vocab_size=61, num_hidden_layers=2, hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=24, max_position_embeddings=16),
        settings=settings, train=sequences, validation=held_out, machine=Machine(ranks, "cpu", 2, 2),
        seed=3, scratch=str(folder / "scratch"), out=str(folder / "out"), ranges=(SequenceRange(0, SEQUENCES, 32),), steps=STEPS,
    )  # fmt: skip


def train_job(folder: Path, ranks: int) -> None:
    """Trains from the start or from the last snapshot."""
    from stages.training.launch.launch import launch

    folder.mkdir(exist_ok=True)
    launch(small(folder, ranks, TOYS), lambda rank, event: None, dict(os.environ))


def train_stage(home: Path) -> None:
    """Runs tokenizer, tokens, mixture and pretraining through the real stages with the index, and prints the queried results."""
    from stages.record.index import database
    from stages.tokens.encode import stage as encode
    from stages.tokens.mix import stage as mix
    from stages.tokens.train_tokenizer import stage as train_tokenizer
    from stages.training import pretrain
    from tests.conftest import run_stage
    from tests.stages.conftest import PRETRAIN, sentences
    from tests.stages.made import documents

    made = documents(home / "made", [sentences(80, 1), sentences(80, 2)])
    tokenizer = run_stage(train_tokenizer.STAGE, {"vocab_size": 300}, {"documents": made}, home)
    tokens = run_stage(encode.STAGE, {}, {"documents": made, "tokenizer": tokenizer}, home)
    mixture = run_stage(mix.STAGE, {"seq_len": 96, "validation_frac": 0.1}, {"tokens": tokens}, home)
    inputs = {"mixture": mixture, "tokens": tokens, "tokenizer": tokenizer}
    runtime = {"cpu_ranks": 2, "micro_batch_size": 4, "eval_batch_size": 8}
    model = run_stage(pretrain.STAGE, {**PRETRAIN, "budget": {"steps": 4}, **TOYS}, inputs, home, runtime=runtime)
    database.reindex(home)
    asked = "SELECT step, loss, accuracy, log_z_squared, validation_accuracy FROM step_metrics ORDER BY step"
    print(json.dumps({"path": str(model.path), "summary": dict(model.summary), "rows": database.query(home, asked)[1]}))


if __name__ == "__main__":
    if sys.argv[1] == "job":
        train_job(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        train_stage(Path(sys.argv[2]))
