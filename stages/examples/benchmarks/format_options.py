"""The format of benchmarks that choose between contexts: several contexts, one continuation and the index of the right context.

Source: llm-foundry's in-context tasks (context_options/continuation/gold), in which Winogrande is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.examples.items.benchmark_format import BenchmarkFormat, Item, continuation_item, options_of, text_of

if TYPE_CHECKING:
    from pydantic import JsonValue


@dataclass(frozen=True)
class OptionsFormat(BenchmarkFormat):
    """Fields: the possible contexts, the continuation, and the index of the right context."""

    def item(self, record: Mapping[str, JsonValue]) -> Item:
        """Returns the item of a record; see BenchmarkFormat.item."""
        options, continuation, gold = self.fields
        contexts, number = options_of(record, options, gold)
        return continuation_item(contexts[number], text_of(record, continuation))
