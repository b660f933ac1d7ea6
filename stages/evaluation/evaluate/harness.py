"""Lets lm-eval compute the metrics of items that are in memory, and cuts long texts into windows.

Guarantee: a sample holds its item's own value of every metric. What is asked is the item's text as Loam words it; no task definition of lm-eval
is used.
Cost: that of the LM (stages/evaluation/evaluate/lm_eval_model.py).
Source: lm-eval 0.4.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from datasets import Dataset


class Question(TypedDict, total=False):
    """An item of a task, with the field names of lm-eval's config. choices: text after the context; gold: number of the right choice."""

    item_id: str
    context: str
    choices: list[str] | None
    gold: int | None
    answer: str | None


@dataclass(frozen=True)
class ItemSample:
    """The results of one item.

    Attributes:
        item_id: The item.
        values: Metric -> value of this item.
        loglikelihoods: Log-probability of each choice, or of the one continuation, in nats.
        requests: What the LM was asked for it, as (context, continuation).
    """

    item_id: str
    values: Mapping[str, float]
    loglikelihoods: tuple[float, ...]
    requests: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class TaskResults:
    """The results of lm-eval.

    Attributes:
        metrics: task -> metric -> (value, standard error or None).
        samples: task -> its items, in lm-eval's order.
    """

    metrics: dict[str, dict[str, tuple[float, float | None]]]
    samples: dict[str, list[ItemSample]]


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


def answer_windows(context: Sequence[int], answer: Sequence[int], max_length: int) -> list[tuple[Sequence[int], int]]:
    """Returns windows (window, first) such that window[first:] together are the answer, each token once.

    Where both do not fit, the context is cut on the left, as in lm-eval. An answer that is itself too long fills several windows, as a long
    text does, of which the first one begins with the last token of the context.

    Args:
        context: Token ids before the answer, at least one.
        answer: Token ids of the answer.
        max_length: A window has at most max_length + 1 tokens.
    """
    if len(answer) > max_length:
        return windows([*context[-1:], *answer], max_length)
    ids = [*context, *answer][-(max_length + 1) :]
    return [(ids, len(ids) - len(answer))]


def run_tasks(lm: Any, tasks: Mapping[str, Sequence[Question]], kinds: Mapping[str, str], chat: bool) -> TaskResults:
    """Returns the results of tasks whose items are in memory.

    Args:
        lm: An LM of lm-eval, such as those of stages/evaluation/evaluate/lm_eval_model.py.
        tasks: name -> items.
        kinds: name -> "multiple_choice" or "continuation".
        chat: Whether the LM takes a context as what a user says. Then an answer has no blank before it.
    """
    import contextlib
    import io
    import logging

    from lm_eval.evaluator import evaluate

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with contextlib.redirect_stderr(io.StringIO()):  # hides the progress bars of lm-eval; errors are still raised
        made = {name: _task(name, items, kinds[name], chat) for name, items in tasks.items()}
        found: Any = evaluate(lm, {"tasks": made, "groups": {}}, bootstrap_iters=1)
    metrics: dict[str, dict[str, tuple[float, float | None]]] = {}
    for name in tasks:
        results = found["results"][name]
        metrics[name] = {}
        for key, value in results.items():
            metric, _, kind = key.partition(",")
            if kind and not metric.endswith("_stderr") and isinstance(value, int | float):
                error = results.get(f"{metric}_stderr,{kind}")
                metrics[name][metric] = (float(value), float(error) if isinstance(error, int | float) else None)
    return TaskResults(metrics, {name: [_sample(sample, metrics[name]) for sample in found["samples"][name]] for name in tasks})


def _sample(logged: Any, metrics: Iterable[str]) -> ItemSample:
    """Returns what lm-eval logged of one item, with its values of `metrics`."""
    values = {metric: float(logged[metric]) for metric in metrics}
    requests = tuple((str(context), str(continuation)) for context, continuation in logged["arguments"])
    return ItemSample(logged["doc"]["item_id"], values, tuple(float(response[0]) for response in logged["filtered_resps"]), requests)


def _task(name: str, items: Sequence[Question], kind: str, chat: bool) -> Any:
    from lm_eval.api.task import ConfigurableTask

    choice = kind == "multiple_choice"
    names = ("acc", "acc_norm", "acc_mutual_info") if choice else ("acc",)
    config = {
        "task": name,
        "custom_dataset": _dataset(items),
        "test_split": "test",
        "output_type": "multiple_choice" if choice else "loglikelihood",
        "doc_to_text": "context",
        "doc_to_target": "gold" if choice else "answer" if chat else " {{answer}}",
        "target_delimiter": "" if chat else " ",
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in names],
        "num_fewshot": 0,
    }
    if choice:
        config["doc_to_choice"] = "choices"
    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(seed=0)
    return task


def _dataset(items: Sequence[Question]) -> Callable[..., dict[str, Dataset]]:
    from datasets import Dataset

    def make(**kwargs: Any) -> dict[str, Dataset]:
        return {"test": Dataset.from_list([dict(item) for item in items])}

    return make
