"""The scores of the tasks that evaluate asks a model, the value of every single item, and the tasks that it does not ask.

Guarantee: a score is the mean of its items' values. A task is asked in one form, through the chat template or as it is.
Cost: that of stages/lm/infer/harness.py.
Source: lm-eval 0.4.13.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from stages.core.contract.errors import StageError
from stages.core.contract.report_section import Section, SectionTable

if TYPE_CHECKING:
    from stages.core.contract.declaration import Artifact
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
    lm: Any, tasks: Mapping[str, ScoredTask], questions: Mapping[str, list[Question]], chat: Collection[str]
) -> tuple[list[TaskScore], list[ItemValue]]:
    """Returns the entries of scores.json and the values of the items of every scored task.

    Args:
        lm: An LM of lm-eval, such as that of stages/lm/infer/lm_eval_model.py.
        tasks: The scored tasks by name.
        questions: Their scored items by task.
        chat: Names of the tasks whose questions pass the chat template.
    """
    from stages.lm.infer.harness import run_tasks

    found = run_tasks(lm, questions, {name: task["kind"] for name, task in tasks.items()}, chat)
    scores: list[TaskScore] = []
    samples: list[ItemValue] = []
    for name, task in tasks.items():
        own, of_items = _task_scores(task, found, len(questions[name]))
        scores += own
        samples += of_items
    return scores, samples


def read_tasks(benchmarks: Path, plain_tasks: Collection[str], node: str) -> dict[str, ScoredTask]:
    """Returns the scored tasks by name.

    Args:
        benchmarks: Folder of the benchmarks artifact.
        plain_tasks: Tasks that are asked as they are, whose names are checked.
        node: The node, for messages.

    Raises:
        StageError: One of plain_tasks is not scored.
    """
    every: list[ScoredTask] = json.loads((benchmarks / "tasks.json").read_text())
    tasks = {task["name"]: task for task in every if task["scored_items"]}
    if unknown := sorted(set(plain_tasks) - set(tasks)):
        raise StageError(
            f"No scored task has the name {unknown[0]!r}; the tasks are {', '.join(tasks) or 'none'}.",
            where=f"{node}.plain_tasks",
            do="Name tasks of the benchmarks that are scored.",
        )
    return tasks


def read_questions(benchmarks: Path, tasks: Iterable[str]) -> dict[str, list[Question]]:
    """Returns task -> its scored items, in the order of items.parquet. benchmarks: folder of the artifact; tasks: names of the scored tasks."""
    from stages.core.tables.parquet import read_rows

    items: dict[str, list[Question]] = {name: [] for name in tasks}
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


def unscored_section(artifact: Artifact) -> Section | None:
    """Returns the tasks that no model is scored on, with the reasons; None if models are scored on all."""
    entries = json.loads((artifact.path / "tasks.json").read_text(encoding="utf-8"))
    rows = tuple(
        {"task": task["name"], "items": f"{task['items']:,}", "why": task["description"]} for task in entries if not task["scored_items"]
    )
    return Section("Tasks without scores", tables=(SectionTable(rows, numeric=("items",)),)) if rows else None
