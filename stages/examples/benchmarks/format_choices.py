"""The format of multiple-choice benchmarks: a question, a list of choices and the index of the right one.

The texts are asked as they are in the file. lm-eval's task hellaswag words the same items otherwise: it puts the activity label before the
context and removes what is in square brackets.
Source: the fields of llm-foundry's in-context tasks (query/choices/gold) and of HellaSwag (ctx/endings/label).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.examples.items.benchmark_format import BenchmarkFormat, Item, choice_item, options_of, text_of

if TYPE_CHECKING:
    from pydantic import JsonValue


@dataclass(frozen=True)
class ChoicesFormat(BenchmarkFormat):
    """Fields: a question, its choices, and the index of the right choice."""

    def item(self, record: Mapping[str, JsonValue]) -> Item:
        """Returns the item of a record; see BenchmarkFormat.item."""
        question, choices, gold = self.fields
        return choice_item(text_of(record, question), *options_of(record, choices, gold))
