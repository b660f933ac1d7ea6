"""A toy: a sentence with its sentiment. CONTRIBUTING.md shows it as the example of a new format of benchmark files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.examples.items.benchmark_format import BadItemError, BenchmarkFormat, Item, choice_item, text_of

if TYPE_CHECKING:
    from pydantic import JsonValue

SENTIMENTS = ("negative", "positive")


@dataclass(frozen=True)
class SentimentFormat(BenchmarkFormat):
    """Fields: a sentence, and 0 for a negative or 1 for a positive one."""

    def item(self, record: Mapping[str, JsonValue]) -> Item:
        """Returns the item of a record; see BenchmarkFormat.item.

        Raises:
            BadItemError: The sentiment is not 0 or 1.
        """
        sentence, sentiment = self.fields
        if record[sentiment] not in (0, 1):
            raise BadItemError(f"the field {sentiment!r} is not 0 or 1")
        return choice_item(text_of(record, sentence), SENTIMENTS, 1 if record[sentiment] else 0)
