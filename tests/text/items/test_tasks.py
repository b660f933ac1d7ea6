from __future__ import annotations

from typing import Any

import pytest

from stages.text.items.tasks import FORMATS, BadItemError, format_of, read_item


def test_every_format_is_recognised_by_its_fields_and_read() -> None:
    records: dict[str, dict[str, Any]] = {
        "query/choices/gold": {"query": " Which? ", "choices": ["a b", "c"], "gold": 1},
        "ctx/endings/label": {"ind": 3, "ctx": "He", "endings": ["runs", "sits"], "label": "0"},
        "context/continuation": {"context": "I like", "continuation": "signs"},
        "context_options/continuation/gold": {"context_options": ["Ann", "Bob"], "continuation": "won.", "gold": 1},
        "question/answer": {"question": "2+2?", "answer": "#### 4"},
        "prompt/canonical_solution": {"task_id": "x", "prompt": "def f():", "canonical_solution": "  pass"},
    }
    assert records.keys() == FORMATS.keys()
    items = {form: read_item(form, record) for form, record in records.items() if format_of(record) == form}
    assert items.keys() == FORMATS.keys()
    assert items["query/choices/gold"].answer == "c" and items["query/choices/gold"].texts == ("Which?", "Which? c")
    assert items["ctx/endings/label"].gold == 0 and items["ctx/endings/label"].kind == "multiple_choice"
    assert items["context/continuation"].kind == "continuation"
    assert items["context_options/continuation/gold"].texts == ("Bob", "Bob won.")


def test_unknown_fields_are_no_format() -> None:
    assert format_of({"sentence": "x", "label": 1}) == ""


@pytest.mark.parametrize(("record", "message"), [
    ({"query": "", "choices": ["a", "b"], "gold": 0}, "the field 'query' is not a text with words in it"),
    ({"query": "q", "choices": ["a"], "gold": 0}, "the field 'choices' is not a list of at least two texts"),
    ({"query": "q", "choices": ["a", ""], "gold": 0}, "the field 'choices' is not a list of at least two texts"),
    ({"query": "q", "choices": ["a", "b"], "gold": 2}, "the field 'gold' does not number one of the 2 texts of 'choices'"),
    ({"query": "q", "choices": ["a", "b"], "gold": True}, "the field 'gold' does not number"),
    ({"query": "q", "gold": 0}, "the record has no field 'choices', which this file's first record has"),
])  # fmt: skip
def test_wrong_fields_are_named(record: dict[str, Any], message: str) -> None:
    with pytest.raises(BadItemError, match=message):
        read_item("query/choices/gold", record)


@pytest.mark.parametrize("gold", ["²", "", "9" * 5000, "-1", "1.0"])
def test_a_number_in_words_that_is_none_is_a_bad_item(gold: str) -> None:
    with pytest.raises(BadItemError, match="'gold' does not number one of the 2 texts"):
        read_item("query/choices/gold", {"query": "q", "choices": ["a", "b"], "gold": gold})
