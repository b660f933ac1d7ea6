"""A home whose trainings are made up: a point is trained when a file with its loss is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.opened_recipe import Session
from flows.trials.sweep.sweep_grid import SweepPoint, SweepRequest, parsed_hold_out, parsed_over, sweep_points
from stages.questions.plan import Plan, Planned
from stages.record.contract.declaration import Artifact
from stages.record.contract.states import NodeState
from stages.training.model import flops
from stages.training.model.config import ModelConfig
from tests.conftest import PROJECT

OVER = ("pretrain.model=[{depth: 1}, {depth: 2}, {depth: 3}]", "pretrain.budget.steps=[10, 40, 160]")
HELD = ("pretrain.model={depth: 4}", "pretrain.budget.steps=640")


@dataclass(frozen=True)
class ToySession(Session):
    """A session whose pretrain is cached if the home has a made-up training of its settings."""

    def plan(self, until: str = "") -> Plan:
        """Returns the plan of the recipe, complete if the training is there."""
        made = made_path(self)
        if not made.exists():
            return Plan(tuple(Planned(step.node, NodeState.WAITING) for step in self.steps(until)), off=self.off)
        artifact = Artifact(made.parent, json.loads(made.read_text()))
        steps = (Planned(step.node, NodeState.CACHED, artifact=artifact if step.node == "pretrain" else None) for step in self.steps(until))
        return Plan(tuple(steps), off=self.off)


def made_path(session: Session) -> Path:
    """Returns the file of a training."""
    section = session.recipe.sections["pretrain"].model_dump_json()
    return session.home / "made" / hashlib.sha256(section.encode()).hexdigest()[:12] / "manifest.json"


def made_points(home: Path, over: tuple[str, ...] = OVER, held: tuple[str, ...] = (), seeds: int = 1, recipe: str = "") -> Any:
    """Returns (request, points) of a sweep over a small recipe."""
    home.mkdir(exist_ok=True)
    text = (PROJECT / "configs" / "tiny.yaml").read_text().replace("warmup_steps: 40", "warmup_steps: 2")
    (home.parent / "toy.yaml").write_text(text)
    axes = parsed_over(over)
    request = SweepRequest(recipe or str(home.parent / "toy.yaml"), (), axes, seeds, parsed_hold_out(held, axes), home=str(home))
    return request, [replace(point, session=ToySession(**vars(point.session))) for point in sweep_points(request)]


def law(parameters: int, tokens: int) -> float:
    """Returns the loss of a made-up training."""
    return 1.5 + 30.0 / parameters**0.3 + 40.0 / tokens**0.25


def train(point: SweepPoint, data: str = "d", **summary: object) -> None:
    """Makes a training up: its loss follows `law`, a little off by its seed."""
    config: Any = point.session.recipe.sections["pretrain"]
    shape = ModelConfig(vocab_size=4096, max_position_embeddings=256, **config.model.model_dump())
    parameters, tokens = flops.parameter_count(shape), config.budget.tokens or config.budget.steps * config.global_batch_size * 256
    loss = law(parameters, tokens) * (1 + 0.001 * ((parameters // 64 + 3 * tokens // 2048 + 2 * point.seed) % 5 - 2) / 2)
    values: Mapping[str, object] = {
        "parameters": parameters, "tokens": tokens, "flops": 6 * parameters * tokens, "validation_loss": loss, "validation_bits_per_byte": loss / 3
    }  # fmt: skip
    path = made_path(point.session)
    path.parent.mkdir(parents=True)
    inputs = {"mixture": {"artifact": "mix/1", "digest": data}}
    record = {
        "node": "pretrain",
        "alias": "pretrain-1",
        "digest": f"of {loss}",
        "bytes": 1,
        "inputs": inputs,
        "summary": {**values, **summary},
    }
    path.write_text(json.dumps(record))
