from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.evaluation.evaluate.harness import TaskResults, run_tasks, windows
from stages.evaluation.evaluate.lm_eval_model import make_lm
from stages.evaluation.evaluate.score import load_model
from stages.record.contract.errors import StageError
from tests.stages import tiny_model

CHOICES = [
    {"item_id": str(i), "context": f"The function {w} returns", "choices": ["the length.", f" its {w}", "the last argument of it", "é 12 x"], "gold": i % 4}
    for i, w in enumerate(("length", "sum", "copy", "name", "first", "last", "12345", "x y"))
]  # fmt: skip
CONTINUED = [
    {"item_id": str(i), "context": f"The {w} of its first", "answer": "argument" if i else "a"} for i, w in enumerate(("sum", "copy", "z"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("harness") / "model")


@pytest.fixture(scope="module")
def ours(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    return load_model(folder, "cpu"), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path, ours: tuple[Any, Any]) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=ours[0], tokenizer=ours[1], add_bos_token=True, batch_size=1, device="cpu")


def loglikelihoods(found: TaskResults) -> dict[tuple[str, str], tuple[float, ...]]:
    return {(task, s.item_id): s.loglikelihoods for task, samples in found.samples.items() for s in samples}


@pytest.mark.parametrize("batch_size", [1, 7])
def test_equals_lm_evals_own_wrapper(ours: tuple[Any, Any], theirs: Any, batch_size: int) -> None:
    tasks, kinds = {"choose": CHOICES, "go_on": CONTINUED}, {"choose": "multiple_choice", "go_on": "continuation"}
    own, oracle = (run_tasks(lm, tasks, kinds, chat=False) for lm in (make_lm(*ours, 64, batch_size), theirs))
    assert own.metrics == oracle.metrics
    assert set(own.metrics["choose"]) == {"acc", "acc_norm", "acc_mutual_info"} and own.metrics["choose"]["acc"] > 0
    a, b = loglikelihoods(own), loglikelihoods(oracle)
    assert a.keys() == b.keys() and len(a) == len(CHOICES) + len(CONTINUED)
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=2e-5)


def test_equals_the_wrapper_of_a_tokenizer_without_bos(folder: Path, ours: tuple[Any, Any], tmp_path: Path) -> None:
    """As Qwen3's: nothing before a context, the end-of-text token before an empty one. Catches: a BOS made up, an error without one."""
    from types import SimpleNamespace

    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    raw, config = (json.loads((folder / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**raw, "post_processor": None}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: value for name, value in config.items() if name != "bos_token"}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.bos_token is None and tokenizer("a")["input_ids"] == tokenizer("a", add_special_tokens=False)["input_ids"]
    lm, oracle = make_lm(ours[0], tokenizer, 64, 4), HFLM(pretrained=ours[0], tokenizer=tokenizer, batch_size=1, device="cpu")
    tasks, kinds = {"choose": CHOICES, "go_on": CONTINUED}, {"choose": "multiple_choice", "go_on": "continuation"}
    own, theirs = (run_tasks(one, tasks, kinds, chat=False) for one in (lm, oracle))
    assert own.metrics == theirs.metrics and "acc_mutual_info" in own.metrics["choose"], "it asks without a context too"
    a, b = loglikelihoods(own), loglikelihoods(theirs)
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=2e-5)
    requests = [SimpleNamespace(args=("The function sum returns the sum of its last argument. " * 4,))]
    assert lm.loglikelihood_rolling(requests) == pytest.approx(oracle.loglikelihood_rolling(requests), rel=1e-5)


def test_contexts_are_cut_on_the_left_as_the_wrapper_cuts_them(ours: tuple[Any, Any], theirs: Any) -> None:
    text, choices = "The sum of its first argument. " * 30, ["the length", "its sum"]
    long = [{"item_id": "0", "context": text, "choices": choices, "gold": 0}]
    lm = make_lm(*ours, 64, 4)
    own, oracle = (run_tasks(one, {"t": long}, {"t": "multiple_choice"}, chat=False) for one in (lm, theirs))
    np.testing.assert_allclose(*(loglikelihoods(found)["t", "0"] for found in (own, oracle)), rtol=2e-5)
    whole = {choice: len(ours[1].encode(f"{text} {choice}")) for choice in choices}
    assert {args: (one.tokens, one.of_answer) for args, one in lm.excess.items()} == {
        (text, f" {choice}"): (tokens - 65, False) for choice, tokens in whole.items()
    }
    assert set(own.samples["t"][0].requests) == {(before, f" {choice}") for before in (text, "") for choice in choices}


@pytest.mark.parametrize("tokens", [64, 65, 66])
def test_what_just_fits_is_not_cut(ours: tuple[Any, Any], tokens: int) -> None:
    """The model reads 64 tokens; the last token of the answer is only predicted. Catches: a bound that is one off."""
    context, answer = [1, *range(2, tokens - 2)], [5, 6, 7]
    lm = make_lm(*ours, 64, 4, answer_ids=lambda question, answers: [(context, answer)] * len(answers))
    (sample,) = run_tasks(lm, {"t": [{"item_id": "0", "context": "q", "answer": "a"}]}, {"t": "continuation"}, chat=True).samples["t"]
    assert len(context) + len(answer) == tokens and [one.tokens for one in lm.excess.values()] == ([1] if tokens == 66 else [])
    assert sample.loglikelihoods[0] == pytest.approx(log_probability(ours[0], [*context, *answer][-65:], 3), rel=1e-4)


def test_an_answer_that_is_longer_than_the_context_is_scored_as_a_whole(ours: tuple[Any, Any]) -> None:
    """In parts: the first 64 tokens after the last token of the question, and each later one after the 64 tokens before it."""
    context, answer = [1, 9, 8], [3 + n % 200 for n in range(150)]
    lm = make_lm(*ours, 64, 4, answer_ids=lambda question, answers: [(context, answer)] * len(answers))
    (sample,) = run_tasks(lm, {"t": [{"item_id": "0", "context": "q", "answer": "a"}]}, {"t": "continuation"}, chat=True).samples["t"]
    (over,) = lm.excess.values()
    assert (over.tokens, over.of_answer) == (153 - 65, True)
    ids = [8, *answer]
    expected = log_probability(ours[0], ids[:65], 64) + log_probability(ours[0], ids[64:129], 64) + log_probability(ours[0], ids[86:], 22)
    assert sample.loglikelihoods[0] == pytest.approx(expected, rel=1e-4)


def log_probability(model: Any, ids: list[int], count: int) -> float:
    """Returns the log-probability of the last `count` ids, from the logits of transformers."""
    import torch

    with torch.no_grad():
        logp = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    return float(logp[torch.arange(len(ids) - 1), ids[1:]][-count:].sum())


@pytest.mark.parametrize("repeats", [1, 4, 20])
def test_rolling_equals_the_wrapper_without_its_second_beginning_of_text(ours: tuple[Any, Any], repeats: int) -> None:
    from types import SimpleNamespace

    from lm_eval.models.huggingface import HFLM

    model, tokenizer = ours
    requests = [SimpleNamespace(args=("The function sum returns the sum of its last argument. " * repeats,))]
    oracle = HFLM(pretrained=model, tokenizer=tokenizer, add_bos_token=False, batch_size=1, device="cpu")
    (found,), (expected,) = (lm.loglikelihood_rolling(requests) for lm in (make_lm(model, tokenizer, 64, 4), oracle))
    assert found == pytest.approx(expected, rel=1e-5)


def generation(context: str, until: list[str], new_tokens: int) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(args=(context, {"until": until, "max_gen_toks": new_tokens, "do_sample": False}))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_generated_answers_are_those_of_the_wrapper(ours: tuple[Any, Any], theirs: Any, batch_size: int) -> None:
    """Catches: padding that is attended to, a stop string that is kept or missed, another row's stop, a prompt that is cut elsewhere."""
    contexts = [f"The {word} of its" for word in ("sum", "copy of the first name", "z")] + ["The length of it " * 12]
    whole = theirs.generate_until([generation(context, [], 24) for context in contexts], disable_tqdm=True)
    assert all(len(text) > 8 for text in whole), "the model writes enough to stop in"
    asked = [generation(context, [], 24) for context in contexts]
    for context, text in zip(contexts, whole, strict=True):
        asked += [generation(context, [text[place : place + 3]], 24) for place in (0, 2, 5)] + [generation(context, ["never~"], 7)]
    lm = make_lm(*ours, 64, batch_size)
    found, expected = lm.generate_until(asked), theirs.generate_until(asked, disable_tqdm=True)
    assert found == expected and len({*found}) > 6
    too_long = len(ours[1].encode(contexts[3])) - (64 - 24)
    assert too_long > 0 and {args[0]: one.tokens for args, one in lm.excess.items() if "24" in args[1]} == {contexts[3]: too_long}


def test_what_was_written_is_kept_with_why_it_ended(ours: tuple[Any, Any], tmp_path: Path) -> None:
    """Catches: a reason of another row, a stop string that the end token hides, reasons that are lost where an evaluation goes on."""
    import torch

    from stages.evaluation.evaluate.kept_answers import KeptAnswers

    model, tokenizer = ours
    context = "The sum of its"
    (whole,) = make_lm(model, tokenizer, 64, 4).generate_until([generation(context, [], 24)])
    prompt = tokenizer.encode(context)
    fourth = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=4)[0, -1].item()
    asked = [generation(context, [], 24), generation(context, [whole[3:6]], 24), generation("The copy", [], 3)]
    reasons = ["length", "stop_string", "length"]
    for _ in range(2):  # the second time from the file
        lm = make_lm(model, tokenizer, 64, 4, kept=KeptAnswers(tmp_path / "answers.jsonl"))
        texts = lm.generate_until(asked)
        assert [lm.written[context, str(kwargs)].text for context, kwargs in (one.args for one in asked)] == texts
        assert [lm.written[context, str(kwargs)].stop for context, kwargs in (one.args for one in asked)] == reasons
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = [fourth]
    try:
        lm = make_lm(model, tokenizer, 64, 4)
        lm.generate_until(asked[:1])
    finally:
        model.generation_config.eos_token_id = before
    (ended,) = lm.written.values()
    assert ended.stop == "end_token" and whole.startswith(ended.text) and len(ended.text) < len(whole)


def test_an_answer_that_may_fill_the_context_is_refused(ours: tuple[Any, Any]) -> None:
    with pytest.raises(StageError, match="lets the model write 64 tokens, and its context is 64"):
        make_lm(*ours, 64, 1).generate_until([generation("The", [], 64)])


def test_an_interrupted_evaluation_goes_on_with_the_answers_that_it_had(ours: tuple[Any, Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Catches: answers that are lost, asked twice, or given to another request, and a line that a kill cut off."""
    from stages.evaluation.evaluate import lm_eval_model
    from stages.evaluation.evaluate.kept_answers import KeptAnswers

    monkeypatch.setattr(lm_eval_model, "BATCHES_KEPT", 1)
    path, passes = tmp_path / "answers.jsonl", []
    real = ours[0].base_model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes.append(1)
        if len(passes) == limit:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(ours[0].base_model, "forward", counted)
    tasks, kinds = {"choose": CHOICES, "go_on": CONTINUED}, {"choose": "multiple_choice", "go_on": "continuation"}
    limit = 0
    whole = run_tasks(make_lm(*ours, 64, 4), tasks, kinds, chat=False)
    every = len(passes)
    passes.clear()
    limit = every - 2
    with pytest.raises(KeyboardInterrupt):
        run_tasks(make_lm(*ours, 64, 4, kept=KeptAnswers(path)), tasks, kinds, chat=False)
    assert path.read_bytes().count(b"\n") == limit - 1
    path.write_bytes(path.read_bytes() + b'{"cut off": [')
    passes.clear()
    limit = 0
    again = run_tasks(make_lm(*ours, 64, 4, kept=KeptAnswers(path)), tasks, kinds, chat=False)
    assert len(passes) == 3 and loglikelihoods(again) == loglikelihoods(whole) and again.metrics == whole.metrics
    asked = [generation("The sum of its", [], 5)]
    text = make_lm(*ours, 64, 4, kept=KeptAnswers(path)).generate_until(asked)
    passes.clear()
    assert make_lm(*ours, 64, 4, kept=KeptAnswers(path)).generate_until(asked) == text and not passes


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 12))
def test_windows_predict_every_token_after_the_first_once(ids: list[int], max_length: int) -> None:
    parts = windows(ids, max_length)
    assert [token for part, first in parts for token in part[first:]] == ids[1:]
    assert all(1 <= first < len(part) <= max_length + 1 for part, first in parts)
