"""The memory that the benchmark of the loss reports, against tensors of known size."""

from __future__ import annotations

import pytest

from tests.bench.train import head_loss

pytestmark = pytest.mark.long

MB = 1e6


def test_each_way_holds_at_least_its_gradients_and_plain_logits_hold_all() -> None:
    vocabulary, tokens = 20_000, 1_500
    memory = {
        row["loss and backward"]: float(row["peak MB above the inputs"].replace(",", "")) for row in head_loss.rows(vocabulary, tokens)
    }
    gradients = 4 * head_loss.WIDTH * (vocabulary + tokens) / MB
    logits = 4 * vocabulary * tokens / MB
    assert all(gradients * 0.9 < found for found in memory.values())
    assert gradients + 2 * logits < memory.pop(head_loss.PLAIN) < gradients + 5 * logits
    assert all(found < gradients + 2 * logits for found in memory.values())
