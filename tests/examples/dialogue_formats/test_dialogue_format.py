"""The reader of a file: which format it takes, the user's own names of fields, and the messages that say what to write."""

from __future__ import annotations

from typing import Any

import pytest

from stages.examples.dialogue_formats.chat_formats import CHAT_FORMATS
from stages.examples.dialogue_formats.dialogue_format import file_reader, mapping_fault
from stages.examples.dialogue_formats.pair_formats import PAIR_FORMATS
from stages.examples.items.dialogue import BadDialogueError, Messages, Pair

KNOWN = "messages, sharegpt, alpaca, prompt_completion, dolly, openorca, metamath, wildchat, ultrachat, lima, oasst_tree"
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def read_chat(*records: dict[str, Any], name: str = "auto", fields: dict[str, str] | None = None) -> Messages:
    """Reads the records of one file and returns the last."""
    read = file_reader(CHAT_FORMATS, name, fields or {}, "conversations", {"preferences": PAIR_FORMATS})
    return [read(record) for record in records][-1].value


def read_pair(record: dict[str, Any]) -> Pair:
    return file_reader(PAIR_FORMATS, "auto", {}, "preferences", {"conversations": CHAT_FORMATS})(record).value


def test_the_first_record_decides_and_another_format_is_refused() -> None:
    alpaca, share = {"instruction": "hi", "output": "ho"}, {"conversations": CHAT}
    assert read_chat(alpaca, alpaca) == read_chat(share, share) == CHAT
    with pytest.raises(
        BadDialogueError, match="the record is in the format sharegpt, but the first record of the file is in the format alpaca"
    ):
        read_chat(alpaca, share)
    with pytest.raises(BadDialogueError, match="the field 'output' is missing"):
        read_chat(alpaca, {"instruction": "x"})
    assert read_chat(alpaca, alpaca | share) == CHAT, "a record with more fields is still in the file's format"


def test_an_unreadable_first_record_decides_nothing() -> None:
    read = file_reader(CHAT_FORMATS, "auto", {}, "conversations", {})
    with pytest.raises(BadDialogueError, match="the record has no fields"):
        read({})
    assert read({"instruction": "hi", "output": "ho"}).value == CHAT


def test_two_readings_are_named() -> None:
    with pytest.raises(BadDialogueError, match="can be read as sharegpt and as alpaca; write conversations.format: sharegpt, or another"):
        read_chat({"conversations": CHAT, "instruction": "hi", "output": "ho"})
    assert read_chat({"conversations": CHAT, "instruction": "ha", "output": "ho"}, name="sharegpt") == CHAT


@pytest.mark.parametrize(("record", "message"), [
    ({"instruction": "a", "reply": "b"},
     "the record has the fields instruction, reply, and no known format has these. It looks like alpaca without 'output'. "
     "Write conversations.format: alpaca and conversations.fields: {output: reply}"),
    ({"instruction": "a", "context": "c", "answer": "b", "category": "d"},
     "It looks like alpaca without 'output'. Write conversations.format: alpaca and conversations.fields: {output: answer, input: context}"),
    ({"question": "a", "answer": "b"}, "It looks like prompt_completion without 'prompt', 'completion'. "
     "Write conversations.format: prompt_completion and conversations.fields: {prompt: question, completion: answer}"),
    ({"Prompt": "a", "Completion": "b"}, "and conversations.fields: {prompt: Prompt, completion: Completion}"),
    ({"dialogue": CHAT}, "Write conversations.format: messages and conversations.fields: {messages: dialogue}"),
    ({"dialogue": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
     "It looks like sharegpt without 'conversations'. Write conversations.format: sharegpt and conversations.fields: {conversations: dialogue}"),
    ({"instruction": "a", "text": "b"}, "Write conversations.format: alpaca and conversations.fields: {output: NAME}"),
    ({"prompt": "a", "completion": "b", "response": "c"}, "It looks like prompt_completion. Write conversations.format: prompt_completion"),
    ({"text": "a"}, "name a format and its fields, for example conversations.format: prompt_completion and conversations.fields: "
     "{prompt: NAME, completion: NAME}"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "the format prompt_pair of preferences; name the file in preferences.files"),
])  # fmt: skip
def test_the_message_names_what_a_chat_looks_like_and_the_lines_to_write(record: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDialogueError) as caught:
        read_chat(record)
    assert message in str(caught.value) and str(caught.value).startswith("the record has the fields ")


@pytest.mark.parametrize(("record", "message"), [
    ({"chosen": "a", "rejected": "b"}, "It looks like prompt_pair without 'prompt'. Write preferences.format: prompt_pair and preferences.fields: {prompt: NAME}"),
    ({"instruction": "a", "chosen_response": "b", "rejected_response": "c"},
     "Write preferences.format: instruction_pair and preferences.fields: {chosen: chosen_response, rejected: rejected_response}"),
    ({"text": "a"}, "for example preferences.format: prompt_pair and preferences.fields: {prompt: NAME, chosen: NAME, rejected: NAME}"),
    ({"messages": CHAT}, "the format messages of conversations; name the file in conversations.files"),
])  # fmt: skip
def test_the_message_names_what_a_pair_looks_like(record: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDialogueError) as caught:
        read_pair(record)
    assert message in str(caught.value)


@pytest.mark.parametrize(("turn", "field", "names", "rename"), [
    ({"from": "human", "text": "hi"}, "dialog", "from, text", "role and content"),
    ({"from": "human", "text": "hi"}, "messages", "from, text", "role and content"),
    ({"from": "human", "text": "hi"}, "conversations", "from, text", "from and value"),
    ({"speaker": "a", "utterance": "hi"}, "dialogue", "speaker, utterance", "role and content"),
    ({"role": "user", "text": "hi"}, "messages", "role, text", "role and content"),
])  # fmt: skip
def test_turns_with_other_fields_are_to_be_renamed_and_no_format_is_suggested(
    turn: dict[str, Any], field: str, names: str, rename: str
) -> None:
    with pytest.raises(BadDialogueError) as caught:
        read_chat({field: [turn, turn]})
    told = f"the turns have the fields {names}; fields inside a turn cannot be mapped: rename them to {rename}, for example with jq"
    assert str(caught.value).endswith(told) and "format:" not in str(caught.value)


def test_the_line_that_a_message_suggests_reads_the_record() -> None:
    record = {"instruction": "hi", "context": "", "response": "ho"}
    assert read_chat(record, name="alpaca", fields={"output": "response", "input": "context"}) == CHAT
    nested = {"data": {"q": "hi", "replies": [{"text": "no"}, {"text": "ho"}]}}
    assert read_chat(nested, name="prompt_completion", fields={"prompt": "data.q", "completion": "data.replies.1.text"}) == CHAT
    with pytest.raises(BadDialogueError, match="the field 'reply' is missing, which conversations.fields names for 'output'"):
        read_chat({"instruction": "hi", "output": "not this"}, name="alpaca", fields={"output": "reply"})


@pytest.mark.parametrize(("name", "fields", "fault"), [
    ("auto", {}, ""),
    ("alpaca", {"output": "response", "system": "s"}, ""),
    ("alpacca", {}, f"the format 'alpacca' is not known; the formats are auto, {KNOWN}; did you mean alpaca?"),
    ("x", {}, f"the format 'x' is not known; the formats are auto, {KNOWN}"),
    ("auto", {"output": "response"}, f"fields renames the fields of one format, so name the format too: one of {KNOWN}"),
    ("alpaca", {"answer": "response"}, "the format alpaca has no field 'answer'; it has instruction, output, input, system, history, tools"),
    ("alpaca", {"response": "output"},
     "the format alpaca has no field 'response'; it has instruction, output, input, system, history, tools (write FIELD OF THE FORMAT: YOUR FIELD)"),
    ("alpaca", {"output": ""}, "the field for 'output' has no name"),
])  # fmt: skip
def test_settings_that_name_no_format_or_no_field(name: str, fields: dict[str, str], fault: str) -> None:
    assert mapping_fault(CHAT_FORMATS, name, fields) == fault


def test_every_format_has_a_name_and_fields_of_its_own() -> None:
    for formats in (CHAT_FORMATS, PAIR_FORMATS):
        assert len({known.name for known in formats}) == len(formats)
        assert all(known.fields and not set(known.fields) & set(known.optional) for known in formats)
