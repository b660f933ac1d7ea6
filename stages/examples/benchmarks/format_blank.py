"""The format of a sentence with a blank, two options for it, and the number of the right one.

The choices are the two sentences from the blank on.
Source: WinoGrande (sentence/option1/option2/answer, the answer "1" or "2").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.examples.items.benchmark_format import BadItemError, BenchmarkFormat, Item, text_of

if TYPE_CHECKING:
    from pydantic import JsonValue

BLANK = "_"
MARKS = ("1", "2")


@dataclass(frozen=True)
class BlankFormat(BenchmarkFormat):
    """Fields: a sentence with one "_", two options, and "1" or "2"."""

    def item(self, record: Mapping[str, JsonValue]) -> Item:
        """Returns the item of a record; see BenchmarkFormat.item.

        Raises:
            BadItemError: The sentence has not one blank, or the answer is not 1 or 2.
        """
        field, *options, answer = self.fields
        sentence, mark = text_of(record, field), str(record[answer]).strip()
        if sentence.count(BLANK) != 1:
            raise BadItemError(f"the field {field!r} has not one '_' for the blank")
        if mark not in MARKS:
            raise BadItemError(f"the field {answer!r} is not 1 or 2")
        before, after = sentence.split(BLANK)
        choices = tuple(f"{text_of(record, option)}{after}".strip() for option in options)
        right = MARKS.index(mark)
        begun, whole = (f"{before}{text}".strip() for text in (text_of(record, options[right]), choices[right]))
        return Item("multiple_choice", before.strip(), choices, right, sentence, choices[right], (begun, whole))
