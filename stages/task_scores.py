"""The scores of the tasks that evaluate asks a model, and the value of every single item.

Guarantee: a score is the mean of its items' values. A task is asked in one form, through the chat template or as it is.
Cost: that of stages/lm/infer/harness.py.
Source: lm-eval 0.4.13.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from stages.core.contract.errors import StageError

if TYPE_CHECKING:
    from stages.core.contract.declaration import Context
    from stages.lm.infer.harness import Question, TaskResults


class ItemValue(TypedDict):
    """A row of SAMPLES."""

    task: str
    item_id: str
    metric: str
    value: float


@dataclass(frozen=True)
class TaskScore:
    """An entry of scores.json.

    Attributes:
        task: The benchmark, or validation.
        metric: The metric.
        value: The mean over the items, or over the documents.
        stderr: Its standard error; None without one.
        n: Number of items.
        chance: Accuracy of a random choice; None for other metrics.
        gate: Whether the report tests the score against chance.
        primary: Whether it is the main metric of its task.
    """

    task: str
    metric: str
    value: float
    stderr: float | None
    n: int
    chance: float | None = None
    gate: bool = False
    primary: bool = False


class ScoredTask(TypedDict):
    """The part of an entry of the benchmarks' tasks.json that this stage reads."""

    name: str
    kind: str
    metric: str
    chance: float | None
    gate: bool
    scored_items: int


def score_tasks(
    model: Any, tokenizer: Any, benchmarks: Path, max_length: int, chat: bool, plain_tasks: Collection[str], ctx: Context
) -> tuple[list[TaskScore], list[ItemValue]]:
    """Returns the entries of scores.json and the values of the items of every scored task.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        benchmarks: Folder of the benchmarks artifact.
        max_length: Context of the scores in tokens.
        chat: Whether questions pass the chat template.
        plain_tasks: Tasks whose questions do not pass it in any case.
        ctx: The node's context.
    """
    from stages.lm.infer.harness import run_tasks
    from stages.lm.infer.lm_eval_model import make_lm

    described = _scored_tasks(benchmarks)
    items = read_questions(benchmarks)
    if not items:
        return [], []
    lm = make_lm(
        model, tokenizer, max_length, ctx.runtime.eval_batch_size, lambda done, total: ctx.progress(done, total, "requests", "tasks")
    )
    through_template = set(items) - set(plain_tasks) if chat else set()
    found = run_tasks(lm, items, {name: task["kind"] for name, task in described.items()}, through_template)
    scores: list[TaskScore] = []
    samples: list[ItemValue] = []
    for task in described.values():
        own, of_items = _task_scores(task, found, len(items[task["name"]]))
        scores += own
        samples += of_items
    return scores, samples


def refuse_unknown(plain_tasks: Collection[str], benchmarks: Path, node: str) -> None:
    """Checks the names of the tasks that are asked as they are.

    Raises:
        StageError: A task is not scored.
    """
    tasks = _scored_tasks(benchmarks)
    if unknown := sorted(set(plain_tasks) - set(tasks)):
        raise StageError(
            f"No scored task has the name {unknown[0]!r}; the tasks are {', '.join(tasks) or 'none'}.",
            where=f"{node}.plain_tasks",
            do="Name tasks of the benchmarks that are scored.",
        )


def _scored_tasks(benchmarks: Path) -> dict[str, ScoredTask]:
    tasks: list[ScoredTask] = json.loads((benchmarks / "tasks.json").read_text())
    return {task["name"]: task for task in tasks if task["scored_items"]}


def read_questions(benchmarks: Path) -> dict[str, list[Question]]:
    """Returns task -> its scored items, in the order of items.parquet."""
    from stages.core.tables.parquet import read_rows

    items: dict[str, list[Question]] = {name: [] for name in _scored_tasks(benchmarks)}
    for row in read_rows(benchmarks / "items.parquet", ["task", "item_id", "context", "choices", "gold", "answer", "scored"]):
        if row.pop("scored"):
            items[row.pop("task")].append(cast("Question", row))
    return items


def _task_scores(task: ScoredTask, found: TaskResults, n: int) -> tuple[list[TaskScore], list[ItemValue]]:
    """Returns the scores of one task with n items, and the values of its items, metric by metric."""
    name, values = task["name"], dict(found.metrics[task["name"]])
    own = {metric: {sample.item_id: sample.values[metric] for sample in found.samples[name]} for metric in values}
    if task["kind"] == "continuation":
        own["nll"] = {sample.item_id: -sample.loglikelihoods[0] for sample in found.samples[name]}
        values["perplexity"] = _perplexity(list(own["nll"].values()))
    scores = []
    for metric, (value, error) in values.items():
        primary = metric == task["metric"]
        chance = task["chance"] if metric.startswith("acc") and task["kind"] == "multiple_choice" else None
        scores.append(TaskScore(name, metric, value, error, n, chance, primary and task["gate"], primary))
    samples: list[ItemValue] = [
        {"task": name, "item_id": item, "metric": metric, "value": value} for metric in own for item, value in own[metric].items()
    ]
    return scores, samples


def _perplexity(nll: list[float]) -> tuple[float, float | None]:
    import numpy as np

    from stages.text.basics.estimates import mean

    value, error = mean(np.array(nll))
    return math.exp(value), None if error is None else math.exp(value) * error
