"""Checks conversations and preference pairs, and extracts the words in them.

Guarantee: a record is either accepted completely or refused with the message and field that is wrong.
Cost: negligible.
Source: the messages format of chat APIs (role, content); prompt/chosen/rejected as in TRL. stages/examples/dialogue_formats has the other formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.corpus.text.words import normalise_words
from stages.examples.dialogue_formats.uncarried import (
    UncarriedError,
    UncarriedReason,
    leaves_out,
    parts_of,
    refuse_uncarried_turn,
    text_of_parts,
)
from stages.examples.items.chat import NOT_TRAINED, ROLES, WEIGHT, special_token_in
from stages.examples.items.field_mapping import shown_fields

if TYPE_CHECKING:
    from pydantic import JsonValue

Messages = list[dict[str, str]]


class BadDialogueError(ValueError):
    """A record is neither a valid conversation nor a valid pair. The message says which part is wrong."""


class OtherFormatError(BadDialogueError):
    """A record is in another format than the first record of its file."""


class TurnFieldsError(BadDialogueError):
    """The first turn of a list has fields of other names. No setting maps them."""


@dataclass(frozen=True)
class Pair:
    """A prompt and two answers to it."""

    prompt: Messages
    chosen: str
    rejected: str


def read_messages(value: JsonValue) -> Messages:
    """Returns the checked messages: a list of {"role", "content"} with at least one assistant turn. Raises BadDialogueError otherwise."""
    return checked_conversation(read_turns(value, "messages", weighed=True))


def checked_conversation(messages: Messages) -> Messages:
    """Returns the messages of a conversation.

    Raises:
        BadDialogueError: They have no assistant turn.
    """
    if not any(message["role"] == "assistant" for message in messages):
        raise BadDialogueError("the conversation has no assistant turn, so there is nothing to learn from")
    return messages


def read_pair(record: Mapping[str, JsonValue], asked: str = "prompt") -> Pair:
    """Returns the pair of a record.

    Args:
        record: Mapping with a prompt (a text or messages), chosen and rejected (each a text, or messages of one assistant turn). If chosen
            and rejected are both longer than one message, they are whole conversations, and the prompt must be a part of them.
        asked: Name of the field with the prompt.

    Raises:
        BadDialogueError: A field is missing or malformed, the prompt ends with an assistant turn, or both answers are identical.
    """
    refuse_missing(record, (asked, "chosen", "rejected"))
    prompt = read_prompt(record[asked], asked)
    chosen, rejected = record["chosen"], record["rejected"]
    if isinstance(chosen, list) and isinstance(rejected, list) and min(len(chosen), len(rejected)) > 1:
        pair = read_conversation_pair(chosen, rejected)
        part = prompt[0] in pair.prompt if isinstance(record[asked], str) else pair.prompt[-len(prompt) :] == prompt
        if not part:
            raise BadDialogueError(f"the field {asked!r} is not in the conversation with which chosen and rejected begin")
        return pair
    return checked_pair(prompt, _answer(chosen, "chosen"), _answer(rejected, "rejected"))


def read_conversation_pair(chosen: JsonValue, rejected: JsonValue) -> Pair:
    """Returns the pair of two conversations that differ in their last turn only. The turns before it are the prompt.

    Raises:
        BadDialogueError: A value is not a list of messages, or the two do not end with one assistant turn after the same turns.
    """
    found = {"chosen": read_turns(chosen, "chosen"), "rejected": read_turns(rejected, "rejected")}
    better, worse = found.values()
    if better == worse:
        raise BadDialogueError("chosen and rejected are identical")
    same = next((n for n, (a, b) in enumerate(zip(better, worse, strict=False)) if a != b), min(len(better), len(worse)))
    for field, turns in found.items():
        if len(turns) != same + 1 or turns[-1]["role"] != "assistant":
            raise BadDialogueError(f"{field} does not end with one assistant turn after the turns that chosen and rejected share ({same})")
    return checked_pair(better[:same], better[-1]["content"], worse[-1]["content"])


def checked_pair(prompt: Messages, chosen: str, rejected: str) -> Pair:
    """Returns a pair.

    Raises:
        BadDialogueError: The prompt is empty or ends with an assistant turn, or both answers are identical.
    """
    if not prompt:
        raise BadDialogueError("there is no prompt before the answers")
    if prompt[-1]["role"] == "assistant":
        raise BadDialogueError("the prompt ends with an assistant turn, so there is nothing to answer")
    if chosen == rejected:
        raise BadDialogueError("chosen and rejected are identical")
    return Pair(prompt, chosen, rejected)


def refuse_missing(record: Mapping[str, JsonValue], fields: Sequence[str]) -> None:
    """Refuses a record without one of `fields`.

    Raises:
        BadDialogueError: A field is missing; the message names the first.
    """
    for field in fields:
        if field not in record:
            raise BadDialogueError(f"the field {field!r} is missing")


def contents(messages: Sequence[Mapping[str, str]]) -> str:
    """Returns the contents of all messages as one text, for the search for benchmark items."""
    return "\n".join(message["content"] for message in messages)


def forged_token(texts: Sequence[str]) -> str:
    """Returns the first special token that is spelt out in any of the texts; "" without one."""
    return next((token for text in texts if (token := special_token_in(text))), "")


def split_key(answer: str) -> str:
    """Returns the normalised words of an answer. Conversations and preferences are both split into train and validation by its hash."""
    return " ".join(normalise_words(answer))


def read_turns(
    value: JsonValue,
    field: str,
    role: str = "role",
    content: str = "content",
    roles: Mapping[str, str] | None = None,
    weighed: bool = False,
) -> Messages:
    """Returns a list of messages. refuse_uncarried_turn refuses turns with fields that training does not carry.

    Args:
        value: The list.
        field: Its name, for messages of errors.
        role: Name of a message's field with the role.
        content: Name of a message's field with the text.
        roles: Role as the list has it -> role; None for ROLES as they are.
        weighed: Whether an answer may be left out of the loss, if another one is trained. It then has WEIGHT.

    Raises:
        BadDialogueError: The value is not a list, or a message has no role, an unknown role or no content. If it is the first turn and has
            fields of other names, it is a TurnFieldsError.
        UncarriedError: A message has an empty content.
    """
    known = roles or dict(zip(ROLES, ROLES, strict=True))
    if not isinstance(value, list) or not value:
        raise BadDialogueError(f"the field {field!r} is not a list of messages")
    left_out = [leaves_out(one) if isinstance(one, Mapping) and known.get(str(one.get(role))) == "assistant" else None for one in value]
    weighed = weighed and False in left_out
    messages = []
    for number, message in enumerate(value):
        where = f"{field}[{number}]"
        untrained = weighed and left_out[number] is True
        if isinstance(message, Mapping):
            given = message.get(role)
            refuse_uncarried_turn(message, where, given, known.get(given, "") if isinstance(given, str) else "", untrained)
        if number == 0 and isinstance(message, Mapping) and len(message) > 1:
            _refuse_other_names(message, where, role, content)
        if not isinstance(message, Mapping) or role not in message:
            raise BadDialogueError(f"{where} has no {role}")
        given = message[role]
        if not isinstance(given, str) or given not in known:
            raise BadDialogueError(f"{where} has the role {str(given)[:40]!r}; the roles are {', '.join(known)}")
        said = message.get(content)
        if content in message and (said is None or isinstance(said, str) and not said.strip()):
            raise UncarriedError(UncarriedReason.EMPTY_TURN, where)
        messages.append({"role": known[given], "content": read_text(said, where)} | ({WEIGHT: NOT_TRAINED} if untrained else {}))
    return messages


def _refuse_other_names(turn: Mapping[str, JsonValue], where: str, role: str, content: str) -> None:
    """Refuses a turn whose fields have other names, which the user has to rename.

    Raises:
        TurnFieldsError: A field is missing.
    """
    if absent := next((field for field in (role, content) if field not in turn), ""):
        raise TurnFieldsError(
            f"{where} has no {absent}: the turns have the fields {shown_fields(turn)}; fields inside a turn cannot be mapped: rename them "
            f"to {role} and {content}, for example with jq"
        )


def read_prompt(value: JsonValue, field: str) -> Messages:
    """Returns a prompt: a text as one user turn, or a list of messages. Raises BadDialogueError like `read_turns` and `read_text`."""
    return [{"role": "user", "content": read_text(value, field)}] if is_text(value) else read_turns(value, field)


def is_text(value: JsonValue) -> bool:
    """Returns whether a value is a text, or the list of its parts, and not a list of messages."""
    parts = parts_of(value)
    return isinstance(value, str) or (bool(parts) and all("type" in part and "role" not in part for part in parts))


def are_texts(value: JsonValue) -> bool:
    """Returns whether a value is a list of nothing but texts."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _answer(value: JsonValue, field: str) -> str:
    if is_text(value):
        return read_text(value, field)
    turns = read_turns(value, field)
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        raise BadDialogueError(f"{field} is not one assistant turn")
    return turns[0]["content"]


def read_text(value: JsonValue, where: str) -> str:
    """Returns a text without surrounding blanks.

    It may be written as a list with one part, {"type": "text", "text": ...}; text_of_parts refuses other parts.

    Raises:
        BadDialogueError: The value is not a text, or it is blank.
    """
    if parts := parts_of(value):
        value = text_of_parts(parts, where)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadDialogueError(f"{where} has no content")
    if not isinstance(value, str):
        raise BadDialogueError(f"{where} holds {_type_name(value)} where a text belongs")
    return value.strip()


def _type_name(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a number"
