"""Runs lm-eval tasks on an exported model, with our own LM class over stages/lm/infer/score.py.

Guarantee: the log-likelihoods equal those of lm-eval's HF wrapper with a BOS before the context, except in rolling perplexity: the wrapper
adds a second BOS there, and this class does not. Equal requests of one call are computed once.
Cost: every distinct request goes through the model once, in batches.
Source: lm-eval 0.4.13, TemplateLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.lm.infer.score import Progress, token_logprobs


@dataclass(frozen=True)
class Scored:
    """The results of lm-eval.

    Attributes:
        metrics: task -> metric -> (value, standard error or None).
        samples: task -> its logged samples.
    """

    metrics: dict[str, dict[str, tuple[float, float | None]]]
    samples: dict[str, list[dict[str, Any]]]


def make_lm(model: Any, tokenizer: Any, max_length: int, batch_size: int, progress: Progress | None = None) -> Any:
    """Returns an lm_eval LM.

    Args:
        model: A Hugging Face causal model.
        tokenizer: A transformers tokenizer.
        max_length: Largest number of tokens in a forward pass. Longer contexts are cut on the left.
        batch_size: Sequences per forward pass.
        progress: See `token_logprobs`.
    """
    from lm_eval.api.model import TemplateLM

    class LoamLM(TemplateLM):
        """An LM for log-likelihoods only. It refuses tasks that generate text."""

        def __init__(self) -> None:
            super().__init__()
            self.tokenizer = tokenizer
            self._known: dict[str, list[int]] = {}

        @property
        def eot_token_id(self) -> int:
            return tokenizer.eos_token_id

        @property
        def prefix_token_id(self) -> int:
            return tokenizer.bos_token_id

        @property
        def tokenizer_name(self) -> str:
            return "loam"

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            return tokenizer.apply_chat_template(chat_history, tokenize=False, add_generation_prompt=add_generation_prompt)

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
            """Returns the token ids of a text. By default they begin with one BOS, also if the text itself begins with it."""
            if add_special_tokens is None:
                add_special_tokens = not string.startswith(tokenizer.bos_token)
            known = f"{add_special_tokens:d}{string}"
            if known not in self._known:
                self._known[known] = tokenizer.encode(string, add_special_tokens=add_special_tokens)
            return self._known[known]

        def _loglikelihood_tokens(
            self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
        ) -> list[tuple[float, bool]]:
            different = {(tuple(context), tuple(continuation)): 0 for _, context, continuation in requests}
            sequences = []
            for number, (context, continuation) in enumerate(different):
                different[context, continuation] = number
                ids = (context + continuation)[-(max_length + 1) :]
                sequences.append((ids, max(len(ids) - len(continuation), 1)))
            scored = token_logprobs(model, sequences, batch_size, progress)
            answers = [scored[different[tuple(context), tuple(continuation)]] for _, context, continuation in requests]
            return [(float(logp.sum()), greedy) for logp, greedy in answers]

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            sums = []
            for request in requests:
                ids = self.tok_encode(request.args[0], add_special_tokens=False)
                parts = windows([self.prefix_token_id, *ids], max_length)
                sums.append(sum(float(logp.sum()) for logp, _ in token_logprobs(model, parts, batch_size)))
            return sums

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            raise NotImplementedError("Loam scores choices and continuations; a task that generates text cannot be evaluated with it.")

    return LoamLM()


def windows(ids: Sequence[int], max_length: int) -> list[tuple[Sequence[int], int]]:
    """Returns windows (window, first) over `ids`. Together, window[first:] covers every token except the first exactly once.

    The last window starts as early as its length allows, as in lm-eval's rolling windows.

    Args:
        ids: Token ids.
        max_length: A window has at most max_length + 1 tokens.
    """
    parts: list[tuple[Sequence[int], int]] = []
    for start in range(0, len(ids) - 1, max_length):
        predicted = min(max_length, len(ids) - 1 - start)
        begin = max(0, start + predicted - max_length)
        parts.append((ids[begin : start + predicted + 1], start + 1 - begin))
    return parts


def run_tasks(lm: Any, tasks: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Mapping[str, str], chat: bool) -> Scored:
    """Returns the results of tasks whose items are in memory.

    Args:
        lm: The result of `make_lm`.
        tasks: name -> items with the fields context, choices, gold and answer.
        kinds: name -> "multiple_choice" or "continuation".
        chat: Whether to apply the chat template.
    """
    import contextlib
    import io
    import logging

    from lm_eval.evaluator import evaluate

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with contextlib.redirect_stderr(io.StringIO()):  # hides the progress bars of lm-eval; errors are still raised
        made = {name: _task(name, items, kinds[name]) for name, items in tasks.items()}
        found = evaluate(lm, {"tasks": made, "groups": {}}, bootstrap_iters=1, apply_chat_template=chat, fewshot_as_multiturn=True)
    metrics: dict[str, dict[str, tuple[float, float | None]]] = {}
    for name in made:
        results = found["results"][name]
        metrics[name] = {}
        for key, value in results.items():
            metric, _, kind = key.partition(",")
            if kind and not metric.endswith("_stderr") and isinstance(value, int | float):
                error = results.get(f"{metric}_stderr,{kind}")
                metrics[name][metric] = (float(value), float(error) if isinstance(error, int | float) else None)
    return Scored(metrics, found["samples"])


def _task(name: str, items: Sequence[Mapping[str, Any]], kind: str) -> Any:
    from lm_eval.api.task import ConfigurableTask

    choice = kind == "multiple_choice"
    names = ("acc", "acc_norm", "acc_mutual_info") if choice else ("acc",)
    config = {
        "task": name,
        "custom_dataset": _dataset(items),
        "test_split": "test",
        "output_type": "multiple_choice" if choice else "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "gold" if choice else " {{answer}}",
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in names],
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    if choice:
        config["doc_to_choice"] = "choices"
    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(seed=0)
    return task


def _dataset(items: Sequence[Mapping[str, Any]]) -> Callable[..., dict[str, Any]]:
    from datasets import Dataset

    def make(**kwargs: Any) -> dict[str, Any]:
        return {"test": Dataset.from_list([dict(item) for item in items])}

    return make
