"""Checks conversations and preference pairs, and extracts the words in them.

Guarantee: a record is either accepted completely or refused with the message and field that is wrong.
Cost: negligible.
Source: the messages format of chat APIs (role, content); prompt/chosen/rejected as in TRL and hh-rlhf conversions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.text.items.chat import ROLES, special_token_in
from stages.text.match.words import normalise_words

if TYPE_CHECKING:
    from pydantic import JsonValue

Messages = list[dict[str, str]]


class BadDialogueError(ValueError):
    """A record is neither a valid conversation nor a valid pair. The message says which part is wrong."""


@dataclass(frozen=True)
class Pair:
    """A prompt and two answers to it."""

    prompt: Messages
    chosen: str
    rejected: str


def read_messages(value: JsonValue) -> Messages:
    """Returns the checked messages: a list of {"role", "content"} with at least one assistant turn.

    Raises:
        BadDialogueError: The value is not such a list.
    """
    messages = _turns(value, "messages")
    if not any(message["role"] == "assistant" for message in messages):
        raise BadDialogueError("the conversation has no assistant turn, so there is nothing to learn from")
    return messages


def read_pair(record: Mapping[str, JsonValue]) -> Pair:
    """Returns the pair of a record.

    Args:
        record: Mapping with prompt (a text or messages), chosen and rejected (each a text, or messages of one assistant turn).

    Raises:
        BadDialogueError: A field is missing or malformed, the prompt ends with an assistant turn, or both answers are identical.
    """
    for field in ("prompt", "chosen", "rejected"):
        if field not in record:
            raise BadDialogueError(f"the field {field!r} is missing")
    prompt = record["prompt"]
    messages = [{"role": "user", "content": _content(prompt, "prompt")}] if isinstance(prompt, str) else _turns(prompt, "prompt")
    if messages[-1]["role"] == "assistant":
        raise BadDialogueError("the prompt ends with an assistant turn, so there is nothing to answer")
    chosen, rejected = (_answer(record[field], field) for field in ("chosen", "rejected"))
    if chosen == rejected:
        raise BadDialogueError("chosen and rejected are identical")
    return Pair(messages, chosen, rejected)


def contents(messages: Sequence[Mapping[str, str]]) -> str:
    """Returns the contents of all messages as one text, for the search for benchmark items."""
    return "\n".join(message["content"] for message in messages)


def forged_token(texts: Sequence[str]) -> str:
    """Returns the first special token that is spelt out in any of the texts; "" without one."""
    return next((token for text in texts if (token := special_token_in(text))), "")


def split_key(answer: str) -> str:
    """Returns the normalised words of an answer. Conversations and preferences are both split into train and validation by its hash."""
    return " ".join(normalise_words(answer))


def _turns(value: JsonValue, field: str) -> Messages:
    if not isinstance(value, list) or not value:
        raise BadDialogueError(f"the field {field!r} is not a list of messages")
    messages = []
    for number, message in enumerate(value):
        where = f"{field}[{number}]"
        if not isinstance(message, Mapping) or "role" not in message:
            raise BadDialogueError(f"{where} has no role")
        role = message["role"]
        if not isinstance(role, str) or role not in ROLES:
            raise BadDialogueError(f"{where} has the role {str(role)[:40]!r}; the roles are {', '.join(ROLES)}")
        messages.append({"role": role, "content": _content(message.get("content"), where)})
    return messages


def _answer(value: JsonValue, field: str) -> str:
    if isinstance(value, str):
        return _content(value, field)
    turns = _turns(value, field)
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        raise BadDialogueError(f"{field} is not one assistant turn")
    return turns[0]["content"]


def _content(value: JsonValue, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadDialogueError(f"{where} has no content")
    return value.strip()
