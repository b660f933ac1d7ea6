from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.evaluation.evaluate import score
from stages.evaluation.evaluate.score import load_model, token_logprobs
from tests.stages import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_model(tiny_model.write(tmp_path_factory.mktemp("score") / "model"), "cpu")


@pytest.fixture(scope="module")
def sequences() -> list[tuple[list[int], int]]:
    rng = np.random.default_rng(0)
    return [(rng.integers(0, 310, n).tolist(), int(rng.integers(1, n + 1))) for n in rng.integers(2, 60, 40)]


def test_equals_the_log_softmax_of_the_whole_sequence(model: Any, sequences: list[tuple[list[int], int]]) -> None:
    for (found, greedy), (ids, first) in zip(token_logprobs(model, sequences, 8), sequences, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        expected = logits.log_softmax(-1)[torch.arange(first - 1, len(ids) - 1), ids[first:]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert greedy == bool((logits.argmax(-1)[first - 1 : -1] == torch.tensor(ids[first:])).all())


def test_batches_and_logit_chunks_do_not_change_the_results(
    model: Any, sequences: list[tuple[list[int], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = token_logprobs(model, sequences, 1)
    monkeypatch.setattr(score, "LOGIT_ELEMENTS", 310 * 7)
    steps: list[tuple[int, int]] = []
    many = token_logprobs(model, sequences, 16, lambda done, total: steps.append((done, total)))
    for (a, greedy_a), (b, greedy_b), (ids, first) in zip(one, many, sequences, strict=True):
        assert len(a) == len(ids) - first and greedy_a == greedy_b
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert steps == [(16, 40), (32, 40), (40, 40)]


def test_no_sequences_give_no_results(model: Any) -> None:
    assert token_logprobs(model, [], 4) == []


def test_a_loaded_model_is_float32_on_a_cpu(tmp_path: Path) -> None:
    folder = tiny_model.write(tmp_path / "model")
    assert next(load_model(folder, "cpu").parameters()).dtype == torch.float32
