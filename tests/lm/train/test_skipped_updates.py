"""Updates that the guard leaves out, under DeepSpeed's ZeRO 1 and 3."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from stages.lm.checkpoints import checkpoint
from stages.lm.measures.metrics import read_metrics
from stages.lm.measures.update_ratio import LAYER_GROUPS
from stages.lm.ranks.launch import LaunchError, launch
from stages.lm.train.job import Machine, RankJob
from stages.lm.train.step_guard import Guard
from tests.lm import plain
from tests.lm.made import changed
from tests.lm.train.test_step_guard import batches, job, poisoned

__all__ = ["job"]


@pytest.mark.parametrize(("ranks", "stage", "step"), [(1, 3, 0), (2, 3, 2), (2, 1, 0)])
def test_deepspeed_skips_as_plain_torch_does(
    job: RankJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, stage: Literal[1, 3], step: int
) -> None:
    """Under ZeRO, and on the rank that has no bad pair too. A snapshot follows each step, also a first one without an update.

    The last checkpoint has counted five updates.
    """
    bad = batches()[step][1]
    skipping = changed(job, guard=Guard(action="skip"), checkpoint_every_steps=1, update_ratio_every_steps=1)
    skipping = poisoned(skipping, tmp_path / "bad", bad)
    expected = plain.run(skipping, tmp_path / "plain", monkeypatch)
    monkeypatch.undo()
    real = replace(skipping, machine=Machine(ranks, "cpu", 2, 3, zero_stage=stage))
    (tmp_path / "out").mkdir()
    launch(real, lambda rank, event: None, dict(os.environ))
    lines = read_metrics(tmp_path / "scratch" / "metrics.jsonl")
    assert [line["skipped"] for line in lines] == [float(number == step) for number in range(6)]
    ratios = [f"update_ratio_{group}" for group in LAYER_GROUPS]
    for name in ("loss", "grad_norm", *ratios):
        found, plainly = (
            [value for value in values if value is not None] for values in ([line.get(name) for line in lines], expected.curve(name))
        )
        assert found == pytest.approx(plainly, rel=1e-5) and len(found) == 5, name
    weights = checkpoint.consolidate(tmp_path / "out" / "checkpoint")
    assert all(torch.allclose(weights[name], tensor, atol=1e-6) for name, tensor in expected.weights.items())
    assert checkpoint.read_trainer(tmp_path / "out" / "checkpoint").optimizer_steps == 5
    with pytest.raises(LaunchError, match=f"Step {step + 1}: the loss is not finite; sequences .*{bad}"):
        launch(replace(changed(real, guard=Guard()), scratch=str(tmp_path / "other")), lambda rank, event: None, dict(os.environ))


def test_bf16_under_stage_1_skips_too(job: RankJob, tmp_path: Path) -> None:
    """DeepSpeed has an optimizer of its own for it. The step after the bad one starts with the weights from before, and without its gradients."""
    skipping = changed(job, guard=Guard(action="skip"), precision="bf16")
    bad = poisoned(skipping, tmp_path / "bad", batches()[2][1])
    runs: dict[str, list[dict[str, float]]] = {}
    for name, own in (("bad", bad), ("good", skipping)):
        real = replace(
            own, machine=Machine(1, "cpu", 2, 3, zero_stage=1), scratch=str(tmp_path / name / "scratch"), out=str(tmp_path / name / "out")
        )
        (tmp_path / name / "out").mkdir(parents=True)
        launch(real, lambda rank, event: None, dict(os.environ))
        runs[name] = read_metrics(tmp_path / name / "scratch" / "metrics.jsonl")
    assert [line["skipped"] for line in runs["bad"]] == [0, 0, 1, 0, 0, 0]
    assert [line["loss"] for line in runs["bad"][:2]] == [line["loss"] for line in runs["good"][:2]]
    assert [line["loss"] for line in runs["bad"][3:]] != [line["loss"] for line in runs["good"][3:]]
    assert checkpoint.read_trainer(tmp_path / "bad" / "out" / "checkpoint").optimizer_steps == 5
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoint.consolidate(tmp_path / "bad" / "out" / "checkpoint").values())
