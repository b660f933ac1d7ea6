"""The format of benchmarks with one right text: a context and its continuation, a question and its answer, a prompt and its solution.

Source: llm-foundry's in-context tasks (context/continuation); GSM8K (question/answer); HumanEval (prompt/canonical_solution).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.examples.items.benchmark_format import BenchmarkFormat, Item, continuation_item, text_of

if TYPE_CHECKING:
    from pydantic import JsonValue


@dataclass(frozen=True)
class ContinuationFormat(BenchmarkFormat):
    """Fields: what the model reads, and the text that is right after it."""

    def item(self, record: Mapping[str, JsonValue]) -> Item:
        """Returns the item of a record; see BenchmarkFormat.item."""
        question, answer = self.fields
        return continuation_item(text_of(record, question), text_of(record, answer))
