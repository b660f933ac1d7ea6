"""The names of fields: a recipe's mapping, and the mapping that a message suggests."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from stages.examples.items.field_mapping import ALSO_CALLED, KnownFields, as_yaml, mapped, shown_fields, suggestion
from stages.record.contract.plain_yaml import parse

FORMATS = [KnownFields("pair", ("a", "b"), ("extra",)), KnownFields("output only", ("output",)), KnownFields("key", ("answerKey", "b"))]


@pytest.mark.parametrize(("path", "value"), [
    ("x", 1), ("x.y", 2), ("deep.list.1.text", "second"), ("deep.list", [{"text": "first"}, {"text": "second"}]), ("deep.null", None),
])  # fmt: skip
def test_a_path_leads_into_objects_and_lists(path: str, value: JsonValue) -> None:
    record: dict[str, JsonValue] = {
        "x": 1, "x.y": 2, "deep": {"list": [{"text": "first"}, {"text": "second"}], "null": None}, "own": 3,
    }  # fmt: skip
    assert mapped(record, {"own": path}) == record | {"own": value}
    assert mapped(record, {}) == record


@pytest.mark.parametrize(
    "path", ["gone", "x.y", "deep.gone", "deep.list.2.text", "deep.list.-1", "deep.list.²", "deep.list." + "9" * 5000, "deep.list.0.text.0"]
)
def test_a_field_that_is_not_there_hides_the_one_of_the_formats_own_name(path: str) -> None:
    assert mapped({"x": 1, "deep": {"list": [{"text": "first"}]}, "own": 3}, {"own": path}) == {
        "x": 1,
        "deep": {"list": [{"text": "first"}]},
    }


@pytest.mark.parametrize(("present", "expected"), [
    (["a", "b"], ("pair", (), {})),
    (["a"], ("pair", ("b",), {})),
    (["B", "a"], ("pair", ("b",), {"b": "B"})),
    (["response"], ("output only", ("output",), {"output": "response"})),
    (["a", "response"], ("output only", ("output",), {"output": "response"})),
    (["a", "b", "Extra"], ("pair", (), {"extra": "Extra"})),
    (["answerKey"], ("key", ("b",), {})),
    (["AnswerKey", "b"], ("key", ("answerKey",), {"answerKey": "AnswerKey"})),
    (["c"], None),
    ([], None),
])  # fmt: skip
def test_the_format_that_has_most_in_common(present: list[str], expected: tuple[str, tuple[str, ...], dict[str, str]] | None) -> None:
    found = suggestion(present, FORMATS)
    assert (found and (found.name, found.absent, found.fields)) == expected


def test_one_field_of_a_record_is_not_suggested_twice() -> None:
    found = suggestion(["answer"], [KnownFields("two", ("output", "completion"))])
    assert found and found.fields == {"output": "answer"} and found.setting == "{output: answer, completion: NAME}"
    assert found.described == "It looks like two without 'output', 'completion'."


def test_a_suggested_line_is_yaml_whatever_the_fields_are_called() -> None:
    fields = {"prompt": "the question", "completion": "no", "system": "a: b", "x": "[1]", "y": 'say "x"', "z": "42", "q": "answers.0.text"}
    assert parse(as_yaml(fields).encode()) == fields
    assert as_yaml({"prompt": "question"}) == "{prompt: question}"


def test_many_or_long_names_are_cut() -> None:
    assert shown_fields(["a", "b"]) == "a, b"
    assert shown_fields([f"f{n}" for n in range(14)]).endswith("f11 and 2 more") and len(shown_fields(["x" * 900] * 900)) < 520


def test_no_field_is_called_by_its_own_name_again() -> None:
    assert all(
        field not in names and len(set(names)) == len(names) == len({n.casefold() for n in names}) for field, names in ALSO_CALLED.items()
    )
    assert all(name == name.casefold() for names in ALSO_CALLED.values() for name in names)
