"""Blocks that torch.compile compiles: one graph without breaks, one compilation for all blocks and batches, the same training."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from stages.lm.model.config import Recompute
from stages.lm.model.llama import Llama
from stages.lm.train.engine import compile_blocks
from stages.lm.train.job import Machine
from stages.lm.train.launch import compiler, launch
from stages.lm.train.metrics import read_metrics
from stages.lm.train.training_run import metric_rows
from stages.training import COMPILERS
from tests.lm.made import MODEL
from tests.lm.toys import train as toys


def batch(bounds: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(len(bounds)))
    return tokens, torch.arange(16).expand(2, 16), torch.tensor([*bounds, *[32] * (17 - len(bounds))], dtype=torch.int32)


@pytest.mark.parametrize("recompute", ["none", "feed_forward", "block"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_block_is_one_graph_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch, recompute: Recompute, qk_norm: bool) -> None:
    """A graph break is an error (fullgraph). Two layers and batches with other segments need one compilation, without gradients another."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *given, **more: compile_with(*given, backend=counter, **more))
    torch.manual_seed(1)
    plain = Llama(MODEL.model_copy(update={"qk_norm": qk_norm}), recompute).train()
    for param in plain.parameters():
        torch.nn.init.normal_(param, 0.5 if param.ndim == 1 else 0.0, 0.2)
    compiled = Llama(plain.config, recompute).train()
    compiled.load_state_dict(plain.state_dict())
    compile_blocks(compiled)
    for bounds in ([0, 16], [0, 3, 9, 16, 20], [0, 1, 16, 31]):
        for model in (plain, compiled):
            model.zero_grad()
            model(*batch(bounds)).logsumexp(-1).sum().backward()
        for (name, expected), found in zip(plain.named_parameters(), compiled.parameters(), strict=True):
            assert expected.grad is not None and torch.allclose(found.grad, expected.grad, atol=1e-5), (bounds, name)
    assert counter.frame_count == 1
    with torch.no_grad():
        assert torch.allclose(compiled(*batch([0, 16])), plain(*batch([0, 16])), atol=1e-5)
    assert counter.frame_count == 2


def test_the_compiler_keeps_its_kernels_in_the_home_or_is_off() -> None:
    assert compiler("/home/cache/kernels") == {"TORCHINDUCTOR_CACHE_DIR": "/home/cache/kernels"}
    assert compiler("") == {"TORCHDYNAMO_DISABLE": "1"}


def curve(folder: Path, kernels: str, **machine: Any) -> list[dict[str, float | None]]:
    folder.mkdir()
    job = toys.small(folder, 1, {})
    job = replace(job, machine=Machine(**{**job.machine.__dict__, **machine, "kernels": kernels}))
    launch(job, lambda rank, event: None, dict(os.environ))
    return metric_rows(read_metrics(folder / "scratch" / "metrics.jsonl"), {})


@pytest.mark.parametrize("kernels", ["kernels"] if any(map(shutil.which, COMPILERS)) else [])
def test_a_compiled_training_follows_the_uncompiled_one(tmp_path: Path, kernels: str) -> None:
    """Under ZeRO-3, with evaluations, whose batches have another size and no gradients. A second training finds the kernels."""
    plain = curve(tmp_path / "plain", "")
    compiled = curve(tmp_path / "compiled", str(tmp_path / kernels))
    made = set((tmp_path / kernels).rglob("*.so"))
    assert made
    again = curve(tmp_path / "again", str(tmp_path / kernels), recompute="none")
    assert set((tmp_path / kernels).rglob("*.so")) == made
    for name in ("loss", "grad_norm", "validation_loss"):
        found, expected = ([row[name] for row in rows if row[name] is not None] for rows in (compiled, plain))
        assert found == pytest.approx(expected, rel=1e-4), name
        assert [row[name] for row in again] == [row[name] for row in compiled]
