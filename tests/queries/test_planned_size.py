"""The size of a pretraining before it runs, counted by hand."""

from __future__ import annotations

import pytest

from flows.pipeline import config_classes
from stages.core.contract.recipe import load_recipe
from stages.queries.plan import Plan
from stages.queries.planned_size import PlannedSize, planned_size

PARAMETERS = 4096 * 128 + 4 * (128 * (2 * 128 + 2 * 64) + 3 * 128 * 384) + 9 * 128
PER_TOKEN = 6 * (PARAMETERS - 9 * 128) + 12 * 4 * 128 * 256


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ((), PlannedSize(PARAMETERS, 300 * 8 * 256, PER_TOKEN * 300.0 * 8 * 256)),
        (("pretrain.budget={tokens: 2049}",), PlannedSize(PARAMETERS, 4096, PER_TOKEN * 4096.0)),
        (
            ("pretrain.batch_ramp=[{steps: 10, global_batch_size: 16}]",),
            PlannedSize(PARAMETERS, 310 * 8 * 256, PER_TOKEN * 310.0 * 8 * 256),
        ),
        (("pretrain.budget={epochs: 2}",), PlannedSize(PARAMETERS, None, None)),
        (("import.mix=mine",), PlannedSize(None, None, None)),
    ],
)
def test_the_size_follows_from_the_recipe(settings: tuple[str, ...], size: PlannedSize) -> None:
    assert planned_size(load_recipe("tiny", config_classes(), settings), Plan(())) == size
