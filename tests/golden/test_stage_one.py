"""Compares trajectories of ZeRO 1 with those of transformers and torch's AdamW (oracle.py), and resumes them under ZeRO 3 and back.

The jobs are those of test_trajectory.py, so both stages follow the same oracle: one rank with clipping; two ranks with accumulation, two
phases and no clipping, so a gradient with wrong scaling by the number of ranks is visible.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from stages.training.checkpoints import checkpoint
from stages.training.job.job import RankJob
from tests.golden.test_trajectory import EVERY, STEPS, Case, Ran, clipped, follows, run, unclipped
from tests.training.made import changed

pytestmark = pytest.mark.long

__all__ = ["clipped", "unclipped"]


def under(job: RankJob, stage: Literal[1, 3]) -> RankJob:
    return replace(job, machine=replace(job.machine, zero_stage=stage))


@pytest.fixture(scope="module")
def two(unclipped: Case, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(under(unclipped.job, 1), tmp_path_factory.mktemp("two"), 2, 2)


def cut(source: Path, folder: Path) -> Path:
    """Copies a run without its last snapshot."""
    shutil.copytree(source, folder)
    shutil.rmtree(folder / "resume" / f"step-{STEPS:010d}")
    return folder


def said(ran: Ran) -> str:
    return (ran.folder / "events-0.jsonl").read_text()


def test_one_rank_follows_the_oracle(clipped: Case, tmp_path: Path) -> None:
    follows(run(under(clipped.job, 1), tmp_path, 1, 8), clipped.curve)


def test_two_ranks_with_accumulation_follow_the_oracle(unclipped: Case, two: Ran) -> None:
    follows(two, unclipped.curve)


def test_every_rank_has_all_weights_and_half_of_the_state(two: Ran) -> None:
    assert len(two.held) == 2
    for event in two.held:
        assert event.resident == event.parameters and abs(event.held - event.parameters / 2) < 10
    assert sum(event.held for event in two.held) == two.held[0].parameters


def test_a_resume_with_the_same_ranks_gives_the_same_bits(unclipped: Case, two: Ran, tmp_path: Path) -> None:
    again = run(under(unclipped.job, 1), cut(two.folder, tmp_path / "again"), 2, 2)
    assert f"continues from step {EVERY} (written by 2 ranks)" in said(again)
    for name in ("loss", "grad_norm", "validation_loss", "lr"):
        assert again.curve(name) == two.curve(name), name
    weights = again.weights()
    assert all(torch.equal(weights[name], tensor) for name, tensor in two.weights().items())


def test_a_run_goes_on_under_the_other_stage_and_back(unclipped: Case, two: Ran, tmp_path: Path) -> None:
    """Two ranks under stage 1, one under stage 3, two under stage 1: the order is the same, the values are within rounding."""
    job = changed(unclipped.job, checkpoint_every_steps=EVERY // 2)
    other = run(under(job, 3), cut(two.folder, tmp_path / "other"), 1, 2)
    assert f"continues from step {EVERY} (written by 2 ranks)" in said(other)
    follows(other, unclipped.curve)
    back = run(under(job, 1), cut(other.folder, tmp_path / "back"), 2, 2)
    assert f"continues from step {EVERY + EVERY // 2} (written by 1 ranks)" in said(back)
    follows(back, unclipped.curve)
    trainer = checkpoint.verify(back.folder / "out" / "checkpoint")
    assert (trainer.step, trainer.optimizer_steps, trainer.ranks) == (STEPS, STEPS, 2)


def test_bf16_has_master_weights_in_fp32_and_a_resume_gives_the_same_bits(clipped: Case, tmp_path: Path) -> None:
    low = under(changed(clipped.job, precision="bf16"), 1)
    expected = run(low, tmp_path / "first", 1, 2)
    assert expected.curve() == pytest.approx(clipped.curve.loss, rel=0.02)
    assert expected.curve() != pytest.approx(clipped.curve.loss, rel=1e-5)
    wanted = expected.weights()
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in wanted.values())
    again = run(low, cut(expected.folder, tmp_path / "again"), 1, 2)
    assert again.curve() == expected.curve() and again.curve("grad_norm") == expected.curve("grad_norm")
    weights = again.weights()
    assert all(torch.equal(weights[name], tensor) for name, tensor in wanted.items())
