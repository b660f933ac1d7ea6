"""The format of questions about a passage that are answered with yes or no.

The question is searched for in the training data, the passage is not: the passages of BoolQ are from Wikipedia, and a page that has one
does not tell the question.
The prompt is that of lm-eval 0.4.13 for boolq, but for surrounding blanks, and a question with a question mark gets no second one.
Source: the fields of BoolQ (question/passage/answer as true or false; SuperGLUE: label as 0 or 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.examples.items.benchmark_format import BadItemError, BenchmarkFormat, Item, asked_item, text_of

if TYPE_CHECKING:
    from pydantic import JsonValue

CHOICES = ("no", "yes")


@dataclass(frozen=True)
class YesNoFormat(BenchmarkFormat):
    """Fields: a question, the passage that answers it, and true or 1 for yes, false or 0 for no."""

    def fits(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether a record has the fields and its answer is not a text: other questions about passages are answered in words."""
        return super().fits(record) and isinstance(record[self.fields[-1]], int)

    def item(self, record: Mapping[str, JsonValue]) -> Item:
        """Returns the item of a record; see BenchmarkFormat.item.

        Raises:
            BadItemError: The answer is not true, false, 0 or 1.
        """
        asked, read, answer = self.fields
        if not isinstance(record[answer], int) or record[answer] not in (0, 1):
            raise BadItemError(f"the field {answer!r} is not true, false, 0 or 1")
        question = text_of(record, asked)
        context = f"{text_of(record, read)}\nQuestion: {question.removesuffix('?')}?\nAnswer:"
        return asked_item(context, question, CHOICES, int(bool(record[answer])))
