"""A training that goes on at 1, 2, 4 and 1 ranks, under one stage of ZeRO or both in turn: the same order, and values within rounding."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from stages.training.checkpoints import checkpoint
from tests.golden.test_trajectory import STEPS, Case, follows, run, unclipped
from tests.training.made import changed

__all__ = ["unclipped"]

Stage = Literal[1, 3]


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stages", [(1, 1, 1, 1), (3, 3, 3, 3), (3, 1, 3, 1), (1, 3, 1, 3)], ids=str)
def test_a_training_goes_on_at_any_number_of_ranks(unclipped: Case, tmp_path: Path, stages: tuple[Stage, ...]) -> None:
    """Each run continues from the snapshot that the one before made at its own step; the last snapshot is taken away.

    One sequence per pass: the smallest batch of the ramp is 4.
    """
    before = 0
    for stage, ranks, every in zip(stages, (1, 2, 4, 1), (7, 9, 11, STEPS), strict=True):
        machine = replace(unclipped.job.machine, zero_stage=stage)
        ran = run(replace(changed(unclipped.job, checkpoint_every_steps=every), machine=machine), tmp_path / "run", ranks, 1)
        follows(ran, unclipped.curve)
        if before:
            assert f"continues from step {before}" in (tmp_path / "run" / "events-0.jsonl").read_text()
        trainer = checkpoint.verify(tmp_path / "run" / "out" / "checkpoint")
        assert (trainer.step, trainer.optimizer_steps, trainer.ranks) == (STEPS, STEPS, ranks)
        shutil.rmtree(tmp_path / "run" / "resume" / f"step-{STEPS:010d}")
        before = every
