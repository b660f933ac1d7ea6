"""Writes small files in the schemas of the official data sets that lm-eval's tasks read. All words are the project's own.

The names and types of the fields are those of allenai/ai2_arc, Rowan/hellaswag, cais/mmlu, openai/gsm8k, allenai/winogrande,
EleutherAI/lambada_openai, baber/piqa and aps/super_glue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.stages.made import jsonl

THINGS = ("kettle", "ladder", "harbour", "violin", "orchard", "compass", "lantern", "quarry", "meadow", "furnace")
DEEDS = ("warms the water", "reaches the roof", "shelters the boats", "fills the hall", "gives sweet apples", "shows the north")
Record = dict[str, Any]


def _choices(rng: random.Random, count: int) -> list[str]:
    return [f"it {deed} of the {thing}" for deed, thing in zip(rng.sample(DEEDS, count), rng.sample(THINGS, count), strict=True)]


def arc_easy(rng: random.Random, number: int) -> Record:
    labels = ["A", "B", "C", "D"] if number % 3 else ["1", "2", "3", "4"]
    asked = f"Which of these says what the {rng.choice(THINGS)} near the {rng.choice(THINGS)} does on day {number} of the long summer?"
    return {
        "id": f"Made_{number}",
        "question": asked,
        "choices": {"text": _choices(rng, 4), "label": labels},
        "answerKey": rng.choice(labels),
    }


def hellaswag(rng: random.Random, number: int) -> Record:
    first = f"A man carries the {rng.choice(THINGS)} to the {rng.choice(THINGS)} [substeps] on day {number}."
    return {
        "ind": number, "activity_label": f"Moving a {rng.choice(THINGS)}", "ctx_a": first, "ctx_b": "he", "ctx": f"{first} he",
        "endings": [f"{one} [title] and rests." for one in _choices(rng, 4)], "label": str(rng.randrange(4)), "source_id": "made~1", "split": "val",
        "split_type": "indomain",
    }  # fmt: skip


def mmlu(subject: str) -> Callable[[random.Random, int], Record]:
    def made(rng: random.Random, number: int) -> Record:
        asked = f"In {subject.replace('_', ' ')}, what is said of the {rng.choice(THINGS)} in lesson {number}? "
        return {"question": asked, "subject": subject, "choices": _choices(rng, 4), "answer": rng.randrange(4)}

    return made


def gsm8k(rng: random.Random, number: int) -> Record:
    a, b = rng.randrange(2, 60), rng.randrange(2, 60)
    asked = f"Ann has {a} {rng.choice(THINGS)}s and buys {b} more on day {number}. How many has she?"
    return {"question": asked, "answer": f"She has {a} + {b} = <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}"}


def winogrande(rng: random.Random, number: int) -> Record:
    one, two = rng.sample(THINGS, 2)
    asked = f"The {one} did not fit beside the {two} on day {number} because the _ was much too large for it."
    return {"sentence": asked, "option1": one, "option2": two, "answer": rng.choice("12")}


def lambada_openai(rng: random.Random, number: int) -> Record:
    thing = rng.choice(THINGS)
    return {"text": f"They looked for the {thing} on day {number}, and when the rain had stopped they found the {thing}"}


def piqa(rng: random.Random, number: int) -> Record:
    first, second = _choices(rng, 2)
    return {
        "goal": f"Clean the {rng.choice(THINGS)} on day {number} without water",
        "sol1": first,
        "sol2": second,
        "label": rng.randrange(2),
    }


def boolq(rng: random.Random, number: int) -> Record:
    thing = rng.choice(THINGS)
    passage = f"The {thing} of the town was built in {1700 + number}. It {rng.choice(DEEDS)} and is closed in winter."
    return {"question": f"is the {thing} closed in the summer of {number}", "passage": passage, "idx": number, "label": rng.randrange(2)}


MADE: dict[str, tuple[Callable[[random.Random, int], Record], str, str]] = {
    "arc_easy": (arc_easy, "test", "train"),
    "hellaswag": (hellaswag, "validation", "train"),
    "gsm8k": (gsm8k, "test", "train"),
    "winogrande": (winogrande, "validation", "train"),
    "lambada_openai": (lambada_openai, "test", ""),
    "piqa": (piqa, "validation", "train"),
    "boolq": (boolq, "validation", "train"),
}
"""Task -> (its records, the split that is scored, the split of the examples)."""


def write(folder: Path, task: str, scored: int = 6, examples: int = 8) -> list[str]:
    """Writes the files of a task of MADE and returns their paths."""
    record, split, fewshot = MADE[task]
    rng = random.Random(f"official {task}")
    paths = [jsonl(folder / task / f"{split}.jsonl", [record(rng, number) for number in range(scored)])]
    if fewshot:
        paths.append(jsonl(folder / task / f"{fewshot}.jsonl", [record(rng, 100 + number) for number in range(examples)]))
    return paths


def write_mmlu(folder: Path, subjects: Sequence[str], scored: int = 2, examples: int = 5) -> list[str]:
    """Writes the two files of cais/mmlu, all subjects in one, as its configuration `all` has them."""
    rng = random.Random("official mmlu")
    parts = {"test": scored, "dev": examples}
    return [
        jsonl(folder / "mmlu" / f"{split}.jsonl", [mmlu(subject)(rng, number) for subject in subjects for number in range(count)])
        for split, count in parts.items()
    ]


def humaneval(number: int) -> Record:
    """A record of openai/openai_humaneval."""
    name = f"add_{number}"
    return {
        "task_id": f"Made/{number}", "prompt": f'def {name}(value):\n    """Returns the value and {number} more, as the old {THINGS[number]} does."""\n',
        "canonical_solution": f"    return value + {number}\n", "entry_point": name,
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n    assert candidate(0) == {number}\n",
    }  # fmt: skip
