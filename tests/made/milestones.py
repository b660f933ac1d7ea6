"""Makes a training with milestones: checkpoints of random weights at given steps, as an artifact of pretrain."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from stages.record.contract.declaration import Artifact
from stages.training.checkpoints import checkpoint, snapshot_folders
from stages.training.model.config import ModelConfig, write_model_config
from stages.training.model.llama import parameter_shapes
from tests.stages import made

TOKENS_PER_STEP = 100


def weights(shape: ModelConfig, step: int) -> dict[str, torch.Tensor]:
    """Returns the weights of a step by parameter, fp32; other ones at each step."""
    draw = torch.Generator().manual_seed(step)
    return {
        name: torch.ones(size) if "norm" in name else torch.randn(size, generator=draw) * 0.3 for name, size in parameter_shapes(shape).items()
    }  # fmt: skip


def trained(folder: Path, vocab_size: int, steps: Sequence[int] = (4, 8, 12), max_position_embeddings: int = 48) -> Artifact:
    """Returns the artifact of a training that kept these steps, the last one as its checkpoint. A step has TOKENS_PER_STEP tokens."""
    shape = ModelConfig(
        vocab_size=vocab_size, max_position_embeddings=max_position_embeddings, num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64,
    )  # fmt: skip
    folder.mkdir(parents=True)
    write_model_config(shape, folder / "model.json")
    for step in steps:
        place = folder / "checkpoint" if step == steps[-1] else snapshot_folders.milestones(folder) / snapshot_folders.name_of(step)
        values = weights(shape, step)
        checkpoint.write_fresh(place, parameter_shapes(shape), lambda name, begin, end, own=values: own[name].flatten()[begin:end], 1 << 20)
    lines = [{"step": step, "tokens": TOKENS_PER_STEP, "loss": 1.0} for step in range(1, steps[-1] + 1)]
    lines.insert(5, {"step": 5, "validation_loss": 1.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = made.artifact(folder, "checkpoint", "pretrain", {"steps": steps[-1]})
    return Artifact(found.path, {**found.manifest, "alias": "pretrain-1"})
