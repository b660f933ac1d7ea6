"""The form of the tasks of DCLM's CORE, and the 22 tasks that CORE is the mean of.

stages/examples/benchmarks/core_bundle.py reads their data, stages/evaluation/evaluate/core_tasks.py asks them.
Guarantee: none beyond the types.
Cost: none.
Source: DCLM (arXiv 2406.11794), whose evaluation names the tasks low_variance_datasets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypedDict

CORE = "core"
"""Name of the group of the tasks, whose score is their mean centered accuracy."""
CORE_PREFIX = "core_"
"""Begins the name of a task. The names without it are those of lm-eval's tasks, which are asked otherwise."""
CORE_TASKS = (
    "hellaswag_zeroshot", "jeopardy", "bigbench_qa_wikidata", "arc_easy", "arc_challenge", "copa", "commonsense_qa", "piqa", "openbook_qa",
    "lambada_openai", "hellaswag", "winograd", "winogrande", "bigbench_dyck_languages", "agi_eval_lsat_ar", "bigbench_cs_algorithms",
    "bigbench_operators", "bigbench_repeat_copy_logic", "squad", "coqa", "boolq", "bigbench_language_identification",
)  # fmt: skip


class CoreKind(StrEnum):
    """What a record of a task holds, by the name that the bundle gives it."""

    CHOICES = "multiple_choice"
    """A question and answers, of which the likeliest per token is chosen."""
    BEGINNINGS = "schema"
    """Several beginnings and one continuation, whose likeliest reading per token is chosen."""
    CONTINUATION = "language_modeling"
    """A text and its continuation, every token of which must be the likeliest."""


class CoreForm(TypedDict):
    """How a task is asked, as tasks.json has it.

    Attributes:
        kind: A CoreKind.
        num_fewshot: Examples before each question.
        delimiter: Text between question and answer.
    """

    kind: str
    num_fewshot: int
    delimiter: str
