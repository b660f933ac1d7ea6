"""The decoder: isolation of segments, agreement with transformers, initial weights, generation."""

from __future__ import annotations

import pytest
import torch

from stages.lm.infer.convert import hugging_face_model, hugging_face_name, largest_difference
from stages.lm.infer.generate import generate
from stages.lm.model.config import ModelConfig, RopeScaling
from stages.lm.model.llama import Llama, build, document_mask, initial_value

SPECIAL = {"bos": 1, "eos": 2, "pad": 0}
SCALING = {"factor": 8, "original_max_position_embeddings": 16}
LEGEND = {
    "vocab_size": 97,
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}


def random_model(**change: object) -> tuple[ModelConfig, Llama]:
    """Returns a model whose weights are all different and not small, so that a mistake is visible."""
    config = ModelConfig(**{**LEGEND, **change})  # type: ignore[arg-type]
    torch.manual_seed(0)
    weights = {name: torch.randn(p.shape) * 0.2 + ("norm" in name) for name, p in Llama(config).named_parameters()}
    return config, build(config, weights)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tie_word_embeddings": True},
        {"qk_norm": True},
        {"num_key_value_heads": 4, "rope_theta": 500_000.0},
        {"head_dim": 20},
        {"head_dim": 6, "tie_word_embeddings": True},
        {"head_dim": 32, "qk_norm": True},
        {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 8, "qk_norm": True},
        {"rope_scaling": SCALING},
        {"rope_scaling": SCALING | {"factor": 32, "low_freq_factor": 0.5, "high_freq_factor": 2.5}, "head_dim": 32},
        {"rope_scaling": SCALING, "qk_norm": True, "head_dim": 32},
    ],
    ids=str,
)
def test_logits_equal_transformers(change: dict) -> None:
    config, ours = random_model(**change)
    weights = {name: p.detach() for name, p in ours.named_parameters()}
    theirs = hugging_face_model(config, weights, SPECIAL, "float32")
    tokens = torch.randint(97, (3, 64), generator=torch.Generator().manual_seed(1))
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM")
    for context in (64, 1000):
        difference, largest = largest_difference(ours, theirs, tokens, context)
        assert difference < 2e-5 * largest


def test_logits_of_another_scaling_differ() -> None:
    """The comparison above would find a scaling that is left out, or one with another factor."""
    config, ours = random_model(rope_scaling=SCALING)
    weights = {name: p.detach() for name, p in ours.named_parameters()}
    tokens = torch.randint(97, (3, 64), generator=torch.Generator().manual_seed(1))
    for scaling in (None, RopeScaling(**SCALING | {"factor": 16})):
        theirs = hugging_face_model(config.model_copy(update={"rope_scaling": scaling}), weights, SPECIAL, "float32")
        difference, largest = largest_difference(ours, theirs, tokens, 64)
        assert difference > 1e-2 * largest


def test_names_in_transformers() -> None:
    assert hugging_face_name("blocks.11.ffn.down.weight") == "model.layers.11.mlp.down_proj.weight"
    assert hugging_face_name("embedding.weight") == "model.embed_tokens.weight"


@torch.no_grad()
def test_a_packed_segment_sees_only_itself() -> None:
    _, model = random_model()
    lengths = [10, 1, 21]
    tokens = torch.randint(97, (1, 40))
    docs = torch.full((1, 40), -1)
    positions = torch.zeros(1, 40, dtype=torch.long)
    at = 0
    for number, length in enumerate(lengths):
        docs[0, at : at + length] = number
        positions[0, at : at + length] = torch.arange(length)
        at += length
    packed = model(tokens, positions, docs)
    at = 0
    for length in lengths:
        alone = tokens[:, at : at + length]
        expected = model(alone, torch.arange(length)[None], torch.zeros_like(alone))
        assert torch.allclose(packed[:, at : at + length], expected, atol=2e-5)
        at += length
    assert torch.isfinite(packed).all()


@torch.no_grad()
def test_kept_positions_are_a_selection() -> None:
    _, model = random_model()
    tokens = torch.randint(97, (2, 16))
    args = (tokens, torch.arange(16).expand(2, 16), torch.zeros_like(tokens))
    keep = torch.rand(2, 16) > 0.5
    assert torch.allclose(model(*args, keep), model(*args)[keep], atol=1e-6)


def test_mask_by_brute_force() -> None:
    docs = torch.tensor([[0, 0, 1, 1, -1, -1]])
    mask = document_mask(docs)[0, 0]
    expected = [[docs[0, q] == docs[0, k] and k <= q for k in range(6)] for q in range(6)]
    assert mask.tolist() == [[bool(v) for v in row] for row in expected]


def test_activation_checkpointing_changes_no_gradient() -> None:
    config, model = random_model()
    again = Llama(config, checkpointing=True)
    again.load_state_dict(model.state_dict())
    tokens = torch.randint(97, (2, 16))
    args = (tokens, torch.arange(16).expand(2, 16), torch.zeros_like(tokens))
    grads = []
    for one in (model.train(), again.train()):
        one(*args).logsumexp(-1).sum().backward()
        grads.append(one.blocks[0].attention.query.weight.grad)
    assert torch.allclose(grads[0], grads[1], atol=1e-6)


def test_initial_values_depend_on_seed_and_name_only() -> None:
    config = ModelConfig(**LEGEND)
    shape = (48, 48)
    first = initial_value("blocks.0.attention.query.weight", shape, config, 3)
    assert torch.equal(first, initial_value("blocks.0.attention.query.weight", shape, config, 3))
    assert not torch.equal(first, initial_value("blocks.1.attention.query.weight", shape, config, 3))
    assert not torch.equal(first, initial_value("blocks.0.attention.query.weight", shape, config, 4))
    assert torch.equal(initial_value("blocks.0.attention_norm.weight", (48,), config, 3), torch.ones(48))


def test_weights_of_another_model_are_refused() -> None:
    config, model = random_model()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    del weights["norm.weight"]
    with pytest.raises(ValueError, match="These weights are of another model: missing \\['norm.weight'\\]"):
        build(config, weights)


@torch.no_grad()
def test_greedy_generation_equals_recomputing_every_prefix() -> None:
    _, model = random_model()
    prompt = [5, 9, 33]
    found = list(generate(model, prompt, 20))
    tokens = list(prompt)
    for token in found:
        ids = torch.tensor([tokens])
        assert int(model(ids, torch.arange(len(tokens))[None], torch.zeros_like(ids))[0, -1].argmax()) == token
        tokens.append(token)
    assert len(found) == 20


def test_generation_stops_samples_and_refuses() -> None:
    _, model = random_model()
    greedy = list(generate(model, [5, 9], 10))
    assert list(generate(model, [5, 9], 10, stop={greedy[3]})) == greedy[: greedy.index(greedy[3])]
    assert list(generate(model, [5, 9], 8, temperature=1.0, seed=1)) == list(generate(model, [5, 9], 8, temperature=1.0, seed=1))
    assert list(generate(model, [5, 9], 30, temperature=1.0, seed=1)) != list(generate(model, [5, 9], 30, temperature=1.0, seed=2))
    assert len(list(generate(model, [5] * 60, 99))) <= 4
    with pytest.raises(ValueError, match="The prompt has 64 tokens; it needs at least 1 and fewer than the context's 64"):
        next(generate(model, [5] * 64, 1))
