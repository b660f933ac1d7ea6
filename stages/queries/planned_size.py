"""The size of a recipe's pretraining before it runs: parameters, tokens and FLOPs.

Guarantee: a figure that depends on an artifact that does not exist, or on a budget in epochs, is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stages.core.contract.recipe import Recipe
from stages.queries.plan import Plan, model_shape


@dataclass(frozen=True)
class PlannedSize:
    """Parameters of the model, tokens that it is trained on, FLOPs of its training; None for what is not known."""

    parameters: int | None
    tokens: int | None
    flops: float | None


def planned_size(recipe: Recipe, plan: Plan) -> PlannedSize:
    """Returns the size of the pretraining of a recipe that trains. plan: its plan."""
    from stages.lm.data.phases import planned_phases, sequences_before
    from stages.lm.model import flops

    shape = model_shape(recipe, {step.node: step.artifact for step in plan.steps}, plan.off)
    if shape is None:
        return PlannedSize(None, None, None)
    config: Any = recipe.sections["pretrain"]  # the config classes of stages are not imported here
    parameters, seq_len = flops.parameter_count(shape), shape.max_position_embeddings
    if config.budget.epochs is not None:
        return PlannedSize(parameters, None, None)
    phases = planned_phases(seq_len, config.batch_sizes)
    tokens = sequences_before(phases, config.budget.in_steps(phases)) * seq_len
    return PlannedSize(parameters, tokens, float(flops.flops_per_token(shape, seq_len) * tokens))
