"""Reads benchmark items in the formats of common files. The format is recognised by the fields of a record.

Guarantee: a record is read by exactly one format, or refused with the field that is wrong. The name of a file is never used.
Cost: negligible.
Source: llm-foundry's in-context tasks (query/choices/gold, context/continuation, context_options), HellaSwag (ctx/endings/label), GSM8K
(question/answer), HumanEval (prompt/canonical_solution).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMATS: Mapping[str, tuple[str, ...]] = {
    "query/choices/gold": ("query", "choices", "gold"),
    "ctx/endings/label": ("ctx", "endings", "label"),
    "context/continuation": ("context", "continuation"),
    "context_options/continuation/gold": ("context_options", "continuation", "gold"),
    "question/answer": ("question", "answer"),
    "prompt/canonical_solution": ("prompt", "canonical_solution"),
}
NOT_SCORED: Mapping[str, str] = {
    "question/answer": "indexed for decontamination, not scored: its answers are generated and parsed, not chosen",
    "prompt/canonical_solution": "indexed for decontamination, not scored: it would run generated programs",
    "context_options/continuation/gold": "indexed for decontamination, not scored: the options stand before the text that is scored",
}


class BadItemError(ValueError):
    """The fields of a record do not have the types or ranges of its format."""


@dataclass(frozen=True)
class Item:
    """One benchmark item. kind: multiple_choice or continuation. texts: the texts whose n-grams are indexed."""

    kind: str
    context: str
    choices: tuple[str, ...]
    gold: int
    question: str
    answer: str
    texts: tuple[str, ...]


def format_of(record: Mapping[str, Any]) -> str:
    """Returns the first format whose fields the record has; "" without one."""
    return next((name for name, fields in FORMATS.items() if all(field in record for field in fields)), "")


def read_item(form: str, record: Mapping[str, Any]) -> Item:
    """Returns a record of a known format as an item.

    Args:
        form: Name of the format, a key of FORMATS.
        record: Fields of the record.

    Raises:
        BadItemError: A field is missing or does not fit the format; the message names it.
    """
    missing = [field for field in FORMATS[form] if field not in record]
    if missing:
        raise BadItemError(f"the record has no field {missing[0]!r}, which this file's first record has")
    if form in ("query/choices/gold", "ctx/endings/label"):
        context, choices, gold = FORMATS[form]
        return _choice(record, context, choices, gold)
    if form == "context_options/continuation/gold":
        options, number = _options(record, "context_options", "gold")
        return _plain(options[number], _text(record, "continuation"))
    question, answer = FORMATS[form][:2]
    return _plain(_text(record, question), _text(record, answer))


def _choice(record: Mapping[str, Any], context: str, choices: str, gold: str) -> Item:
    text = _text(record, context)
    options, number = _options(record, choices, gold)
    return Item("multiple_choice", text, options, number, text, options[number], _texts(text, options[number]))


def _plain(question: str, answer: str) -> Item:
    return Item("continuation", question, (), 0, question, answer, _texts(question, answer))


def _texts(question: str, answer: str) -> tuple[str, ...]:
    """Returns the texts to index.

    The question alone is one of them: a page that contains the question is contaminated even without the answer.
    """
    return (question, f"{question} {answer}")


def _text(record: Mapping[str, Any], field: str) -> str:
    value = record[field]
    if not isinstance(value, str) or not value.strip():
        raise BadItemError(f"the field {field!r} is not a text with words in it")
    return value.strip()


def _options(record: Mapping[str, Any], field: str, gold: str) -> tuple[tuple[str, ...], int]:
    options, number = record[field], record[gold]
    if not isinstance(options, list) or len(options) < 2 or not all(isinstance(o, str) and o.strip() for o in options):
        raise BadItemError(f"the field {field!r} is not a list of at least two texts")
    if isinstance(number, str) and number.isdecimal() and len(number) < 10:  # isdigit accepts "²", int does not
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(options):
        raise BadItemError(f"the field {gold!r} does not number one of the {len(options)} texts of {field!r}, counting from 0")
    return tuple(o.strip() for o in options), number
