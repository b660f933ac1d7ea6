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


EXAMPLES = list(range(40, 75))


def sharing(rng: np.random.Generator) -> list[tuple[list[int], int]]:
    """Questions after the same examples, with four answers each: of one token, of several, and longer than the question."""
    found: list[tuple[list[int], int]] = []
    for number in range(6):
        question = [*EXAMPLES, *rng.integers(3, 310, int(rng.integers(4, 9))).tolist()]
        found += [([*question, answer], len(question)) for answer in (7, 8, 9, 10)]
        found += [([*question, *rng.integers(3, 310, 3 + number + more).tolist()], len(question)) for more in range(4)]
    for _ in range(3):
        question = rng.integers(3, 310, 6).tolist()
        found += [([*question, *rng.integers(3, 310, size).tolist()], 6) for size in (2, 5, 30)]
    return found + [([1, *rng.integers(3, 310, 5).tolist()], 1) for _ in range(5)]


def whole(model: Any, ids: list[int], first: int) -> np.ndarray:
    """Returns the log-probabilities of ids[first:] by transformers, of this sequence alone."""
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return logp[torch.arange(first - 1, len(ids) - 1), ids[first:]].numpy()


def forward_shapes(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Returns a list that gets the shape of the ids of each forward pass."""
    shapes, real = list[torch.Size](), model.base_model.forward

    def noted(*args: Any, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        shapes.append(input_ids.shape)
        return real(*args, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(model.base_model, "forward", noted)
    return shapes


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_what_sequences_share_is_computed_once_and_changes_nothing(model: Any, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: an answer that sees another answer, a wrong position after the cache or the context, and a result that goes to another sequence."""
    given = sharing(np.random.default_rng(1))
    shuffled = [given[number] for number in np.random.default_rng(2).permutation(len(given))]
    shapes = forward_shapes(model, monkeypatch)
    found = token_logprobs(model, shuffled, batch_size)
    monkeypatch.undo()
    for (own, greedy), (ids, first) in zip(found, shuffled, strict=True):
        expected = whole(model, ids, first)
        np.testing.assert_allclose(own, expected, atol=1e-4)
        with torch.no_grad():
            best = model(torch.tensor([ids])).logits[0].argmax(-1)[first - 1 : -1].tolist()
        assert greedy == (best == ids[first:])
    plain = sum(len(ids) - 1 for ids, _ in given)
    tokens = sum(shape.numel() for shape in shapes)
    assert tokens < plain / 2, (tokens, plain)


def test_answers_of_one_token_take_the_passes_of_one_question(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = forward_shapes(model, monkeypatch)
    found = token_logprobs(model, [([1, 20, 30, answer], 3) for answer in (5, 6, 7, 8)], 4)
    assert shapes == [(1, 3)] and [len(own) for own, _ in found] == [1] * 4 and len({float(own[0]) for own, _ in found}) == 4


WINDOWED: dict[str, dict[str, Any]] = {
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Mistral": {"sliding_window": 8},
    "Qwen3": {"head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]},
    "SmolLM3": {},
    "Olmo3": {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
}


def windowed(kind: str) -> Any:
    """Returns a model with random weights of a class in WINDOWED."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=310, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=96, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0, **WINDOWED[kind],
    )  # fmt: skip
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize("batch_size", [1, 16])
@pytest.mark.parametrize("kind", WINDOWED)
def test_windows_are_masked_and_models_that_read_neighbours_are_scored_sequence_by_sequence(
    kind: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LFM2 has convolutions: a mask of ours alone would show them other answers. A window counts positions of a sequence, not places in a row."""
    other = windowed(kind)
    given = sharing(np.random.default_rng(3))
    shapes = forward_shapes(other, monkeypatch)
    scored = token_logprobs(other, given, batch_size)
    monkeypatch.undo()
    for (found, _), (ids, first) in zip(scored, given, strict=True):
        np.testing.assert_allclose(found, whole(other, ids, first), atol=1e-4)
    plain = sum(len(ids) - 1 for ids, _ in given)
    tokens = sum(shape.numel() for shape in shapes)
    assert tokens >= plain if kind == "Lfm2" else tokens < plain / 2
