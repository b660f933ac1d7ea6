"""One trajectory, met by plain torch, ZeRO-3 on one rank, on two ranks, and with gradient accumulation; and by every resume.

The oracle is a bare loop with torch's AdamW and a gradient norm in fp64 (torch's fp32 norm is itself off by 3.5e-5).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.lm import checkpoint
from stages.lm.arch import ModelConfig
from stages.lm.data import RowReader, write_row_files
from stages.lm.job import Job, Machine, OptimConfig
from stages.lm.launch import LaunchError, launch
from stages.lm.meters import read_metrics
from stages.lm.model import Llama, build, initial_value
from stages.lm.objectives import language_modelling, to_torch
from stages.lm.optim import adamw
from stages.lm.order import Order, Phase
from stages.lm.schedule import Schedule

STEPS, BATCH, HALF = 12, 8, 6
MODEL = ModelConfig(61, 2, 24, 4, 2, 40, 32, tied_embeddings=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Rows of two or three pieces with a mask, so that ranks and micro-batches have unequal numbers of targets."""
    draw = np.random.default_rng(5)
    lengths, row_of = [], []
    for row in range(40):
        rest = 32
        while rest > 4 and len([r for r in row_of if r == row]) < 3:
            length = int(draw.integers(3, rest + 1))
            lengths.append(length)
            row_of.append(row)
            rest -= length
    items = [(np.cumsum(draw.integers(0, 3, n)) % 61, (draw.random(n) < 0.7).astype(np.uint8)) for n in lengths]
    folder = tmp_path_factory.mktemp("rows")
    rows = write_row_files(folder / "train", items, np.array(row_of), 32, 0)
    held_out = write_row_files(folder / "validation", items[:7], np.arange(7), 32, 0)
    return Job(
        kind="train", model=MODEL, objective="language_modelling", train=rows, validation=held_out, machine=Machine(1, "cpu", 8, 2), seed=3,
        scratch="", out="", phases=(Phase(0, 40),), steps=STEPS, global_batch_rows=BATCH, learning_rate=1e-2, min_lr_frac=0.1, warmup_steps=3,
        optim=OptimConfig(clip=0.5), eval_every_steps=HALF, checkpoint_every_steps=HALF,
    )  # fmt: skip


def run(job: Job, folder: Path, ranks: int, micro: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs a job; its metrics and the events that rank 0 … n-1 wrote about what they hold."""
    held = []
    shutil.rmtree(folder / "out", ignore_errors=True)
    machine = replace(job.machine, ranks=ranks, micro_batch_rows=micro)
    launch(
        replace(job, machine=machine, scratch=str(folder), out=str(folder / "out")),
        lambda _, event: held.append(event) if event["kind"] == "partition" else None,
        os.environ,
    )
    return read_metrics(folder / "metrics.jsonl"), held


@pytest.fixture(scope="module")
def plain(job: Job) -> dict[str, Any]:
    """The oracle: losses, gradient norms and final weights of a bare torch loop."""
    names = {name: tuple(p.shape) for name, p in Llama(MODEL).named_parameters()}
    model = build(MODEL, {name: initial_value(name, shape, MODEL, job.seed) for name, shape in names.items()}).train()
    optimizer, reader, order = adamw(model.named_parameters(), job.optim), RowReader(job.train), Order(job.phases, job.seed, BATCH)
    schedule = Schedule(job.learning_rate, job.min_lr_frac, job.warmup_steps, STEPS)
    losses, norms = [], []
    for step in range(STEPS):
        batch = reader.batch(order.rows_of_step(step))
        moved = to_torch(batch, torch.device("cpu"))
        total, _ = language_modelling().loss(model(moved.tokens, moved.positions, moved.docs, moved.keep), moved)
        optimizer.zero_grad()
        (total / batch.targets).backward()
        norm = float(sum(p.grad.double().pow(2).sum() for p in model.parameters()).sqrt())
        for param in model.parameters():
            param.grad.mul_(min(1.0, job.optim.clip / (norm + 1e-6)))
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        optimizer.step()
        losses.append(float(total.detach()) / batch.targets)
        norms.append(norm)
    return {"loss": losses, "grad_norm": norms, "weights": {n: p.detach() for n, p in model.named_parameters()}}


@pytest.fixture(scope="module")
def one(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("one")
    return folder, run(job, folder, 1, 8)[0]


@pytest.fixture(scope="module")
def two(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("two")
    return folder, *run(job, folder, 2, 2)


def curve(lines: list[dict[str, Any]], name: str = "loss") -> list[float]:
    return [line[name] for line in lines if name in line]


def test_one_rank_follows_plain_torch(plain: dict[str, Any], one: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, lines = one
    assert curve(lines) == pytest.approx(plain["loss"], rel=5e-6)
    assert curve(lines, "grad_norm") == pytest.approx(plain["grad_norm"], rel=2e-5)
    weights = checkpoint.consolidate(folder / "out" / "checkpoint")
    assert set(weights) == set(plain["weights"])
    for name, expected in plain["weights"].items():
        assert torch.allclose(weights[name], expected, atol=2e-4), name


def test_two_ranks_with_accumulation_follow_plain_torch(plain: dict[str, Any], two: tuple[Path, list[dict], list[dict]]) -> None:
    assert curve(two[1]) == pytest.approx(plain["loss"], rel=5e-5)


def test_parameters_are_really_partitioned(two: tuple[Path, list[dict], list[dict]]) -> None:
    _, _, held = two
    assert len(held) == 2
    for event in held:
        assert event["resident"] == 0 or event["resident"] < event["parameters"] / 20
        assert event["held"] <= event["parameters"] / 2 * 1.05


def test_gradient_accumulation_on_one_rank(job: Job, plain: dict[str, Any], tmp_path: Path) -> None:
    """With recomputed activations, which must change nothing either."""
    recomputing = replace(job, machine=replace(job.machine, activation_checkpointing=True))
    assert curve(run(recomputing, tmp_path, 1, 2)[0]) == pytest.approx(plain["loss"], rel=5e-6)


def test_loss_goes_down_and_validation_is_there(one: tuple[Path, list[dict[str, Any]]]) -> None:
    lines = one[1]
    assert [line["step"] for line in lines if "validation_loss" in line] == [0, HALF, STEPS]
    assert curve(lines, "validation_loss")[-1] < curve(lines, "validation_loss")[0]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_resume(job: Job, one: Any, two: Any, tmp_path: Path, before: int, after: int) -> None:
    """A run whose last resume point is gone goes on from the one before, with the same curve and no doubled step."""
    source, expected = (one if before == 1 else two)[:2]
    shutil.copytree(source, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "resume" / f"step-{STEPS:010d}")
    lines, _ = run(job, tmp_path / "again", after, 8 // after if before == 1 else 2)
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    weights, wanted = (checkpoint.consolidate(folder / "out" / "checkpoint") for folder in (tmp_path / "again", source))
    same = before == after
    assert curve(lines) == (curve(expected) if same else pytest.approx(curve(expected), rel=1e-6))
    for name, tensor in wanted.items():
        assert torch.equal(weights[name], tensor) if same else torch.allclose(weights[name], tensor, atol=2e-5), name


def test_resume_in_bf16_restores_the_low_precision_copies_too(job: Job, tmp_path: Path) -> None:
    low = replace(job, precision="bf16")
    expected, _ = run(low, tmp_path, 1, 8)
    wanted = checkpoint.consolidate(tmp_path / "out" / "checkpoint")
    shutil.rmtree(tmp_path / "resume" / f"step-{STEPS:010d}")
    lines, _ = run(low, tmp_path, 1, 8)
    assert curve(lines) == curve(expected)
    weights = checkpoint.consolidate(tmp_path / "out" / "checkpoint")
    assert all(torch.equal(weights[name], tensor) for name, tensor in wanted.items())
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in wanted.values())  # the masters are fp32


def test_a_damaged_resume_point_is_passed_over(job: Job, one: Any, tmp_path: Path) -> None:
    shutil.copytree(one[0], tmp_path / "again")
    root = tmp_path / "again" / "resume"
    shard = root / f"step-{STEPS:010d}" / "shards" / "00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    said: list[str] = []
    fingerprint = replace(job, machine=Machine(2)).fingerprint()
    found = checkpoint.latest_good(root, fingerprint, said.append)
    assert found is not None and found[1].step == HALF
    assert "does not have the sha256 that was recorded. Falling back" in said[0]
    (root / f"step-{HALF:010d}" / "checkpoint.json").unlink()
    assert checkpoint.latest_good(root, fingerprint, said.append) is None
    assert "is no checkpoint: it has no checkpoint.json" in said[-1]
    shutil.rmtree(root / f"step-{STEPS:010d}" / "shards")
    with pytest.raises(checkpoint.CheckpointError, match="shards/00000.safetensors is missing"):
        checkpoint.verify(root / f"step-{STEPS:010d}")


def test_a_resume_point_of_another_job_is_not_used(job: Job, one: Any) -> None:
    said: list[str] = []
    assert checkpoint.latest_good(one[0] / "resume", replace(job, learning_rate=1.0).fingerprint(), said.append) is None
    assert "is of another job (model, data or settings differ)" in said[0]


def test_a_loss_that_is_not_finite_names_the_rows(job: Job, tmp_path: Path) -> None:
    """A learning rate past all bounds: the weights overflow, and the run ends with one sentence and no rank left."""
    with pytest.raises(LaunchError, match=r"(The loss of step \d+ is not finite|The gradients of step \d+ are not finite); rows \d+"):
        run(replace(job, learning_rate=1e30, warmup_steps=0), tmp_path, 1, 8)
    assert not (tmp_path / "out").exists()
