"""One number gives a model: every depth can be built, what is given stays, and each value follows its rule."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stages.lm.model import flops
from stages.lm.model.config import MOST_DEPTH, ModelConfig
from stages.lm.model.dial import NoRateError, dial_values


def derived(depth: int, vocab_size: int = 4096, seq_len: int = 256, **given: Any) -> dict[str, Any]:
    return {one.key: one.value for one in dial_values(depth, vocab_size, seq_len, {"model": {"depth": depth}, **given})}


def model(values: dict[str, Any], vocab_size: int = 4096, seq_len: int = 256, **own: Any) -> ModelConfig:
    shape = {key.removeprefix("model."): value for key, value in values.items() if key.startswith("model.")}
    return ModelConfig(vocab_size=vocab_size, max_position_embeddings=seq_len, **shape, **own)


@pytest.mark.parametrize("vocab_size", [262, 128_256])
def test_every_depth_can_be_built_and_grows(vocab_size: int) -> None:
    before = 0
    for depth in range(1, MOST_DEPTH + 1):
        values = derived(depth, vocab_size, 2048)
        shape = model(values, vocab_size, 2048)
        assert shape.num_hidden_layers == depth and 64 * depth <= shape.hidden_size < 64 * depth + 256
        assert shape.head_dim * shape.num_attention_heads == shape.hidden_size
        assert shape.head_dim == (64 if shape.hidden_size < 1024 else 128)
        assert shape.intermediate_size % 64 == 0 and 0 <= shape.intermediate_size - 8 * shape.hidden_size / 3 < 64
        assert (shape.num_attention_heads // shape.num_key_value_heads) == (2 if shape.hidden_size >= 2048 else 1)
        parameters = flops.parameter_count(shape)
        assert parameters > before and not shape.tie_word_embeddings
        assert values["budget"] == {"tokens": 20 * flops.matmul_parameters(shape)}
        assert list(shape.conv_layers) == [layer for layer in range(depth - 1) if layer % 2 == 0]
        before = parameters


def test_what_is_small_is_told_by_hand() -> None:
    assert derived(2) == {
        "model.num_hidden_layers": 2, "model.hidden_size": 128, "model.num_attention_heads": 2, "model.num_key_value_heads": 2,
        "model.intermediate_size": 384, "model.qk_norm": True, "model.tie_word_embeddings": False, "model.conv_layers": [0],
        "optimizer": {"name": "muon"}, "optimizer.embedding_learning_rate_ratio": 10.0, "embedding_std": 1.0,
        "budget": {"tokens": 20 * 950_272},  # 4,096·128 + 2·(4·128² + 3·128·384)
        "global_batch_size": 32,  # 0.58 · 19,005,440^0.571 / 256 = 32.1 sequences
        "learning_rate": 0.02, "warmup_steps": 232, "eval_every_steps": 580, "checkpoint_every_steps": 580,  # of 2,320 steps
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model_given", "others", "expected"),
    [
        (
            {"hidden_size": 100},
            {"optimizer": {"name": "adamw"}},
            {"model.num_attention_heads": 1, "model.intermediate_size": 320, "learning_rate": 0.0077},
        ),
        ({}, {}, {"model.conv_layers": [0, 2, 4]}),
        ({"num_attention_heads": 7}, {}, {"model.hidden_size": 448, "model.num_key_value_heads": 7}),
        ({"num_attention_heads": 128}, {}, {"model.hidden_size": 512}),
        ({"tie_word_embeddings": True, "qk_norm": False}, {}, {"model.conv_layers": [], "optimizer": {"name": "muon"}}),
        ({}, {"budget": {"steps": 50}}, {"warmup_steps": 5, "eval_every_steps": 12}),
        ({}, {"budget": {"tokens": 512_000}, "global_batch_size": 10}, {"warmup_steps": 20, "checkpoint_every_steps": 50}),
        ({}, {"budget": {"tokens": 1}}, {"warmup_steps": 0, "eval_every_steps": 1, "global_batch_size": 8}),
        ({}, {"optimizer": {"name": "muon", "momentum": 0.9}}, {"learning_rate": 0.02, "optimizer.embedding_learning_rate_ratio": 10.0}),
        ({}, {"optimizer": {"name": "muon", "embedding_learning_rate_ratio": 2.0}}, {"learning_rate": 0.02}),
        ({}, {"embedding_std": 0.5}, {"optimizer": {"name": "muon"}}),
        ({"tie_word_embeddings": "true", "qk_norm": 1}, {}, {"model.conv_layers": [0, 2, 4]}),
        ({"qk_norm": "no"}, {}, {"model.conv_layers": []}),
        ({}, {"optimizer": {"betas": [0.9, 0.99]}}, {"learning_rate": 0.002}),
        ({}, {"learning_rate": None, "warmup_steps": None}, {"learning_rate": 0.02}),
        ({"hidden_size": "wide", "heads": 3}, {"global_batch_size": True, "budget": {"tokens": -3}}, {"model.num_attention_heads": 6}),
    ],
)
def test_what_is_given_stays_and_the_rest_follows_it(model_given: dict[str, Any], others: dict[str, Any], expected: dict[str, Any]) -> None:
    values = derived(6, model={"depth": 6, **model_given}, **others)
    assert expected.items() <= values.items()
    assert not {f"model.{name}" for name in model_given} & set(values)
    assert not {name for name, value in others.items() if value is not None} & set(values)
    optimizer = others.get("optimizer", {"name": "muon"})
    own_embedding = (
        not model_given.get("tie_word_embeddings") and optimizer.get("name") == "muon" and "embedding_learning_rate_ratio" not in optimizer
        and "embedding_std" not in others
    )  # fmt: skip
    assert ("embedding_std" in values) == ("optimizer.embedding_learning_rate_ratio" in values) == own_embedding, (
        "they are measured together"
    )


def test_a_given_width_and_heads_give_a_model() -> None:
    for width in range(2, 400, 2):
        model(derived(3, model={"depth": 3, "hidden_size": width}), hidden_size=width)
    for heads in range(1, 70):
        model(derived(3, model={"depth": 3, "num_attention_heads": heads}), num_attention_heads=heads)


def test_a_budget_in_epochs_leaves_to_the_recipe_what_hangs_on_its_steps() -> None:
    values = derived(6, budget={"epochs": 2})
    assert not {"warmup_steps", "eval_every_steps", "checkpoint_every_steps", "budget"} & set(values) and "global_batch_size" in values


def test_the_batch_is_the_nearest_power_of_two_to_the_law() -> None:
    for exponent in range(5, 14):
        batch = derived(6, budget={"tokens": 10**exponent}, seq_len=64)["global_batch_size"]
        law = 0.58 * (10**exponent) ** 0.571 / 64
        assert math.log2(batch).is_integer() and (batch == 8 or 2**-0.5 <= batch / law <= 2**0.5)


def test_an_optimizer_without_a_rule_needs_a_rate() -> None:
    with pytest.raises(NoRateError, match="there is no rule for the learning rate of the optimizer sgd"):
        derived(6, optimizer={"name": "sgd"})
    assert "learning_rate" not in derived(6, optimizer={"name": "sgd"}, learning_rate=0.1)


def test_every_value_names_its_source() -> None:
    assert all(one.source for depth in (1, 20, 40) for one in dial_values(depth, 4096, 256, {}))
