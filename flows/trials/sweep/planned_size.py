"""The size of a recipe's pretraining before it runs: parameters, tokens and FLOPs.

Guarantee: a figure that depends on an artifact that does not exist, or on a budget in epochs, is None. Tokens follow the table of phases, so each
range of the mixture counts at its own length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stages.questions.plan import Plan
from stages.questions.planned_ranges import pretraining_phases
from stages.questions.training_size import built_mixture, model_shape, steps_before
from stages.record.contract.errors import RecipeError
from stages.record.contract.recipe import Recipe


@dataclass(frozen=True)
class PlannedSize:
    """Parameters of the model, tokens that it is trained on, FLOPs of its training; None for what is not known."""

    parameters: int | None
    tokens: int | None
    flops: float | None


def planned_size(recipe: Recipe, plan: Plan) -> PlannedSize:
    """Returns the size of the pretraining of a recipe that trains. plan: its plan.

    Raises:
        RecipeError: A range of its mixture is too short for a batch.
    """
    from stages.training.data.phases import OrderError, tokens_by_length
    from stages.training.model import flops

    shape = model_shape(recipe, {step.node: step.artifact for step in plan.steps}, plan.off)
    if shape is None:
        return PlannedSize(None, None, None)
    config: Any = recipe.sections["pretrain"]  # the config classes of stages are not imported here
    parameters = flops.parameter_count(shape)
    if config.budget.epochs is not None:
        return PlannedSize(parameters, None, None)
    before = next((steps_before(step.files) for step in plan.steps if step.node == "pretrain"), 0)
    try:
        phases = pretraining_phases(config.batch_sizes, recipe.sections.get("mix"), built_mixture(plan))
    except OrderError as error:
        raise RecipeError(str(error), where=f"{recipe.source}: pretrain", do="Change the ranges of mix or the batch.") from None
    tokens = tokens_by_length(phases, before, config.budget.in_steps(phases))
    work = sum(count * flops.flops_per_token(shape, length) for length, count in tokens.items())
    return PlannedSize(parameters, sum(tokens.values()), float(work))
