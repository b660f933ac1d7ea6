"""Small jobs and renderings that several tests of the model half use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stages.lm.data.order import Phase
from stages.lm.data.reader import write_row_files
from stages.lm.model.config import ModelConfig
from stages.lm.train.job import Job, Machine


def small_job(folder: Path, machine: Machine, steps: int) -> Job:
    """A training job over eight rows of 16 tokens, with its files below `folder`."""
    items = [(np.arange(16) % 11, np.ones(16, np.uint8)) for _ in range(8)]
    rows = write_row_files(folder / "rows", items, np.arange(8), 16, 0)
    return Job(
        kind="train", model=ModelConfig(11, 1, 8, 2, 1, 8, 16), objective="language_modelling", train=rows, machine=machine, seed=1,
        scratch=str(folder / "scratch"), out=str(folder / "out"), phases=(Phase(0, 8),), steps=steps, global_batch_rows=4, learning_rate=1e-3,
    )  # fmt: skip


def render(messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
    """A token per character behind one for the beginning; what an assistant says is trained."""
    ids, mask = [1], [0]
    for message in messages:
        ids += [2 + ord(c) % 50 for c in message["content"]]
        mask += [int(message["role"] == "assistant")] * len(message["content"])
    return ids, mask
