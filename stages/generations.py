"""The texts that evaluate lets a model write, so that a person can read what it learned: prompts, rows and section of the report.

Guarantee: the same prompts for every model of a recipe that is asked in the same form. The texts are not scored.
Cost: one forward pass per token (stages/lm/infer/continued_text.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from stages.core.contract.declaration import Artifact
from stages.core.contract.report_section import SectionTable
from stages.core.contract.side_table import Column, SideTable

if TYPE_CHECKING:
    import numpy as np

    from stages.lm.infer.continued_text import Prompt

GENERATIONS = SideTable(
    "generations", "generations", "a text that the model wrote",
    {
        "source": Column("string", "recipe, or the benchmark item or held-out document that the prompt is from"),
        "prompt": Column("string", "what the model was given"),
        "text": Column("string", "what it wrote"),
        "ended": Column("bool", "whether it ended the text itself; if not, the limit of tokens did"),
    },
)  # fmt: skip
PROMPTS = 4  # prompts that are taken from the data if the recipe gives none
OPENING_TOKENS = 24  # tokens of a held-out document that are a prompt

TITLE = "What the models write"  # of the table in the report

T = TypeVar("T")


def given(tokenizer: Any, texts: Sequence[str], chat: bool) -> list[Prompt]:
    """Returns the prompts of a recipe. chat: whether they are questions in the chat format."""
    from stages.lm.infer.continued_text import Prompt, prompt_ids

    return [Prompt("recipe", text, prompt_ids(tokenizer, text, chat)) for text in texts]


def questions(tokenizer: Any, asked: Sequence[tuple[str, str]]) -> list[Prompt]:
    """Returns some of the questions of benchmarks, evenly spaced, in the chat format. asked: (source, question); empty ones are left out."""
    from stages.lm.infer.continued_text import Prompt, prompt_ids

    chosen = _spread([(source, text) for source, text in asked if text])
    return [Prompt(source, text, prompt_ids(tokenizer, text, chat=True)) for source, text in chosen]


def openings(tokenizer: Any, documents: Sequence[tuple[str, np.ndarray]]) -> list[Prompt]:
    """Returns the openings of some held-out documents, evenly spaced. documents: (id, token ids with a BOS)."""
    from stages.lm.infer.continued_text import Prompt

    chosen = [(doc_id, ids[: OPENING_TOKENS + 1].tolist()) for doc_id, ids in _spread(documents)]
    return [Prompt(doc_id, tokenizer.decode(ids, skip_special_tokens=True), ids) for doc_id, ids in chosen]


def rows(model: Any, tokenizer: Any, prompts: Sequence[Prompt], new_tokens: int, max_length: int) -> Iterator[dict[str, object]]:
    """Yields the rows of GENERATIONS.

    Args:
        model: A Hugging Face causal model.
        tokenizer: Its tokenizer.
        prompts: The prompts.
        new_tokens: Largest number of tokens per text.
        max_length: Context in tokens.
    """
    from stages.lm.infer.continued_text import continued

    for prompt in prompts:
        written = continued(model, tokenizer, prompt.ids, new_tokens, max_length)
        yield {"source": prompt.source, "prompt": prompt.text, "text": written.text, "ended": written.ended}


def section_table(artifact: Artifact) -> SectionTable | None:
    """Returns the table of texts of a scores artifact for the report; None if it has none."""
    from stages.core.tables.parquet import read_rows

    path = artifact.path / "generations.parquet"
    found = list(read_rows(path)) if path.is_file() else []  # scores of earlier versions, which a recipe can import, have no such file
    model = artifact.manifest["node"].partition("@")[2]
    table = [{"model": model, "prompt": row["prompt"], "text": row["text"] + ("" if row["ended"] else " …")} for row in found]
    return SectionTable(tuple(table), TITLE) if table else None


def _spread(values: Sequence[T]) -> list[T]:
    """Returns at most PROMPTS of the values, evenly spaced."""
    return [values[number * len(values) // PROMPTS] for number in range(PROMPTS)] if len(values) > PROMPTS else list(values)
