"""The size of a pretraining before it runs, counted by hand."""

from __future__ import annotations

import pytest

from flows.pipeline import config_classes
from flows.trials.sweep.planned_size import PlannedSize, planned_size
from stages.questions.plan import Plan
from stages.record.contract.errors import RecipeError
from stages.record.contract.recipe import load_recipe

MATMULS = 4096 * 128 + 2 * 128 * (2 * 128 + 2 * 64) + 2 * 4 * 128 * 128 + 4 * 3 * 128 * 384
"""Head, two blocks with attention, two with short convolutions, four feed-forward layers."""
PARAMETERS = MATMULS + 4096 * 128 + 9 * 128 + 2 * 2 * 32 + 2 * 3 * 128
"""And the embedding, the norms of blocks and output, those of queries and keys, and the filters."""
PER_TOKEN = 6 * MATMULS + 12 * 2 * 128 * 256


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (("pretrain.budget.steps=300",), PlannedSize(PARAMETERS, 300 * 8 * 256, PER_TOKEN * 300.0 * 8 * 256)),
        (("pretrain.budget={tokens: 2049}",), PlannedSize(PARAMETERS, 4096, PER_TOKEN * 4096.0)),
        (
            ("pretrain.budget.steps=300", "pretrain.batch_ramp=[{steps: 10, global_batch_size: 16}]"),
            PlannedSize(PARAMETERS, 310 * 8 * 256, PER_TOKEN * 310.0 * 8 * 256),
        ),
        (("pretrain.budget={epochs: 2}",), PlannedSize(PARAMETERS, None, None)),
        (("import.mix=mine",), PlannedSize(None, None, None)),
    ],
)
def test_the_size_follows_from_the_recipe(settings: tuple[str, ...], size: PlannedSize) -> None:
    assert planned_size(load_recipe("tiny", config_classes(), settings), Plan(())) == size


def test_tokens_and_work_follow_the_ranges_of_the_mixture() -> None:
    """100 sequences of 64 tokens are 12 whole batches of 8; the other 288 steps read sequences of 256."""
    phases = "mix.phases=[{tokens: 6400, seq_len: 64}, {tokens: 100000}]"
    tokens = {64: 12 * 8 * 64, 256: 288 * 8 * 256}
    work = sum(count * (6 * MATMULS + 12 * 2 * 128 * length) for length, count in tokens.items())
    assert planned_size(load_recipe("tiny", config_classes(), (phases, "pretrain.budget.steps=300")), Plan(())) == PlannedSize(
        PARAMETERS, sum(tokens.values()), float(work)
    )


def test_a_range_that_is_too_short_is_refused() -> None:
    phases = "mix.phases=[{tokens: 64, seq_len: 64}, {tokens: 100000}]"
    with pytest.raises(RecipeError, match="Sequences to train on from number 0 on: 1, less than one global batch of 8"):
        planned_size(load_recipe("tiny", config_classes(), (phases,)), Plan(()))
