"""A shown step against plain torch: the gradient at the logits, AdamW's updates, paths on a surface that has a formula, and the whole on a made model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from stages.questions.learning import shown_step
from stages.questions.learning.shown_step import StepRequest, computed, loss_slice, predicted
from stages.questions.learning.update_rules import AdamSettings, LossSlice, Point, adamw, adamw_steps, momentum, path, sgd, softmax
from stages.record.contract.errors import RecipeError, StageError
from stages.record.tables.shards import shard_name
from stages.training.checkpoints.checkpoint import write_fresh
from stages.training.data.reader import write_sequence_files
from stages.training.model.config import ModelConfig, write_model_config
from stages.training.model.llama import initial_value, parameter_shapes

SHAPE = ModelConfig(
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=24,
    vocab_size=40,
    max_position_embeddings=32,
)


def test_the_gradient_at_the_logits_is_p_minus_y() -> None:
    """Against autograd of torch's own cross-entropy."""
    torch.manual_seed(3)
    logits = torch.randn(4, 11, requires_grad=True)
    labels = [2, 0, 10, 5]
    F.cross_entropy(logits, torch.tensor(labels), reduction="sum").backward()
    assert logits.grad is not None
    texts = [f"t{n}" for n in range(11)]
    for number, one in enumerate(predicted(logits.detach(), labels, ["a"] * 4, texts)):
        assert one.gradient == pytest.approx(float(logits.grad[number, labels[number]]), abs=1e-6)
        assert one.loss == pytest.approx(
            float(F.cross_entropy(logits[number : number + 1], torch.tensor(labels[number : number + 1])).detach()), abs=1e-6
        )
        assert one.target == texts[labels[number]] and one.likely[0][1] == pytest.approx(
            float(logits[number].detach().softmax(0).max()), abs=1e-6
        )
        others = {text: float(logits.grad[number, n]) for n, text in enumerate(texts) if text != one.target}
        assert all(p == pytest.approx(others[text], abs=1e-6) for text, p in one.likely if text != one.target), (
            "the gradient of the others is p"
        )


def test_adamw_is_that_of_torch() -> None:
    gradients = [0.3, -0.2, 0.0, 5.0, 1e-9, -0.4]
    weight = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.8, 0.97), eps=1e-6, weight_decay=0.3)
    for g, one in zip(gradients, adamw_steps(gradients, 0.7, AdamSettings(0.01, 0.8, 0.97, 1e-6, 0.3)), strict=True):
        before = float(weight.detach())
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        state = optimizer.state[weight]
        assert one.weight == pytest.approx(float(weight.detach()), abs=1e-12) and one.update == pytest.approx(
            float(weight.detach()) - before, abs=1e-12
        )
        assert one.m == pytest.approx(float(state["exp_avg"]), abs=1e-12) and one.v == pytest.approx(float(state["exp_avg_sq"]), abs=1e-12)


def test_softmax_is_that_of_torch_at_every_temperature_and_does_not_overflow() -> None:
    logits = [1000.0, 999.0, -5.0]
    for t in (0.1, 1.0, 2.5):
        assert softmax(logits, t) == pytest.approx((torch.tensor(logits, dtype=torch.float64) / t).softmax(0).tolist(), abs=1e-12)


def bowl() -> LossSlice:
    xs, ys = np.linspace(-2, 2, 41).tolist(), np.linspace(-1, 1, 21).tolist()
    return LossSlice(xs, ys, [[x * x + 3 * y * y for x in xs] for y in ys])


@pytest.mark.parametrize(("rule", "theirs"), [
    (sgd(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    (momentum(0.01), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    (adamw(0.1), lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.95), weight_decay=0.0)),
])  # fmt: skip
def test_the_paths_are_those_of_torch(rule, theirs) -> None:  # type: ignore[no-untyped-def]
    """On a bowl whose slopes over a cell are exact in its middle; torch walks on the formula."""
    places = path(bowl(), Point(1.0, 0.5), 12, rule)
    weight = torch.tensor([1.0, 0.5], dtype=torch.float64, requires_grad=True)
    optimizer = theirs([weight])
    for place in places:
        assert place == pytest.approx(tuple(weight.tolist()), abs=0.03)
        optimizer.zero_grad()
        (weight[0] ** 2 + 3 * weight[1] ** 2).backward()
        optimizer.step()


def test_a_place_between_the_grid_and_outside_of_it() -> None:
    plane = LossSlice([0.0, 1.0, 2.0], [0.0, 1.0], [[0.0, 2.0, 4.0], [5.0, 7.0, 9.0]])
    assert plane.at(Point(0.5, 0.5)) == 3.5 and plane.at(Point(2.0, 1.0)) == 9.0 and plane.at(Point(-7.0, 9.0)) == 5.0
    assert plane.gradient(Point(1.0, 0.5)) == pytest.approx((2.0, 5.0))


@pytest.fixture
def asked(tmp_path: Path) -> StepRequest:
    """A made model whose checkpoint is its initial weights, with three sequences and a tokenizer of words."""
    model, tokens, mixture = (tmp_path / name for name in ("model", "encode", "mix"))
    model.mkdir()
    write_model_config(SHAPE, model / "model.json")
    shapes = parameter_shapes(SHAPE)
    write_fresh(
        model / "checkpoint",
        shapes,
        lambda name, begin, end: initial_value(name, tuple(shapes[name]), SHAPE, 7).flatten()[begin:end],
        1 << 20,
    )
    items = [(np.random.default_rng(n).integers(1, 40, 12 + n).astype(np.int64), np.ones(12 + n, np.uint8)) for n in range(3)]
    files = write_sequence_files(tmp_path / "sequences", items, np.arange(3), 32, 0)
    (tokens / "tokens").mkdir(parents=True)
    shutil.copy(files.tokens[0], tokens / "tokens" / f"{shard_name(0, 1)}.bin")
    (tokens / "tokens.json").write_text(json.dumps({"shards": [1], "dtype": files.dtype, "pad": 0}))
    (mixture / "train").mkdir(parents=True)
    for one in (files.segments, files.sequences):
        shutil.copy(one, mixture / "train")
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(40)}, unk_token="w0"))
    words.save(str(tmp_path / "tokenizer.json"))
    return StepRequest(
        str(model), (), str(mixture), str(tokens), str(tmp_path / "tokenizer.json"), 32, 0, 7, None, AdamSettings(0.01, weight_decay=0.1)
    )


def test_a_step_of_a_made_model_is_that_of_transformers_and_torch(asked: StepRequest) -> None:
    """The loss by transformers' model on the same weights; the followed weight by a torch loop of our own."""
    from stages.training.checkpoints.checkpoint import consolidate
    from stages.training.checkpoints.convert import hugging_face_model
    from stages.training.data.reader import SequenceReader
    from stages.training.run.mixture_sequences import part_files

    found = computed(asked)
    weights = consolidate(Path(asked.model) / "checkpoint")
    theirs = hugging_face_model(SHAPE, weights, {"bos": 1, "eos": 2, "pad": 0}, "float32")
    reader = SequenceReader(part_files(Path(asked.tokens), Path(asked.mixture), "train", 32))
    ids = [torch.from_numpy(reader.batch([n % 3]).tokens[0, : 12 + n % 3]) for n in range(5)]
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    followed = theirs.model.layers[0].mlp.down_proj.weight
    row, column = json.loads(found.parameter.partition(" ")[2])
    for number, one in enumerate(found.updates):
        optimizer.zero_grad()
        loss = F.cross_entropy(theirs(ids[number][None]).logits[0, :-1], ids[number][1:])
        loss.backward()
        if not number:
            assert (found.step, found.targets) == (0, 11) and found.loss == pytest.approx(float(loss.detach()), abs=1e-4)
            assert [one.target for one in found.predictions] == [f"w{n}" for n in ids[0][1:].tolist()]
            assert found.weight == float(followed[row, column].detach()) and abs(found.updates[0].gradient) == pytest.approx(
                float(followed.grad.abs().max()), rel=1e-3
            )
        assert one.gradient == pytest.approx(float(followed.grad[row, column]), rel=5e-3, abs=1e-6)
        optimizer.step()
        assert one.weight == pytest.approx(float(followed[row, column].detach()), abs=1e-5)
    assert len(found.logits) == 40 and list(found.logits) == sorted(found.logits, reverse=True) and found.surface is not None


def test_the_process_gives_the_same_and_refusals_arrive(asked: StepRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found, told = shown_step.shown_step(asked), computed(asked)
    assert found == told
    with pytest.raises(StageError, match="The mixture has no sequence 3; it has 3"):
        shown_step.shown_step(replace(asked, sequence=3))
    monkeypatch.setattr(shown_step, "MAX_PARAMETERS", 10)
    with pytest.raises(RecipeError, match=r"has [\d,]+ parameters; a step is shown of at most 10"):
        computed(asked)


def test_the_changes_and_the_slice_begin_at_the_initial_weights(asked: StepRequest) -> None:
    from stages.training.checkpoints.checkpoint import consolidate
    from stages.training.losses.loss import TorchBatch
    from stages.training.model.llama import build, whole_sequences

    weights = consolidate(Path(asked.model) / "checkpoint")
    initial = shown_step.initial_weights(asked, weights)
    assert initial and all(torch.equal(initial[name], one) for name, one in weights.items())
    (change,) = shown_step.changes(asked, {name: one * 2 for name, one in initial.items()})
    assert set(change.groups) >= {"embedding", "attention", "feed-forward"} and all(v == pytest.approx(0.5) for v in change.groups.values())
    tokens = torch.arange(16).view(1, 16)
    positions, bounds = whole_sequences(tokens)
    batch = TorchBatch(tokens, positions, torch.zeros_like(tokens), bounds, torch.arange(15), tokens[0, 1:], None)
    ends = {name: one + 0.3 for name, one in weights.items()}
    found = loss_slice(build(SHAPE, dict(ends)), weights, ends, batch)
    for x, start in ((0.0, weights), (1.0, ends)):
        with torch.no_grad():
            expected = F.cross_entropy(build(SHAPE, dict(start))(tokens, positions, bounds)[0, :15], tokens[0, 1:])
        assert found.at(Point(x, 0.0)) == pytest.approx(float(expected), abs=1e-4)
    assert found.at(Point(1.0, 0.25)) != pytest.approx(found.at(Point(1.0, 0.0)), abs=1e-4)
    assert shown_step.initial_weights(replace(asked, seed=None), weights) is None
