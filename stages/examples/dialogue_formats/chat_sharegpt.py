"""The format of ShareGPT: a list of {"from", "value"}, or of {"role", "content"} under the same name.

A turn from function_call is a call of a tool as JSON, one from observation its result.
WildChat has its turns under the name conversation.
Source: the exports of ShareGPT as in Vicuna's training data (from: human, gpt, system); TRL's maybe_convert_to_chatml for both shapes; Zhao et al.
2024, WildChat, arXiv 2405.01470; LLaMA-Factory for function_call and observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.items.dialogue import TURN_ROLES, Messages, are_texts, checked_conversation, read_turns

if TYPE_CHECKING:
    from pydantic import JsonValue

SPEAKERS = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", **TURN_ROLES}


class ShareGptFormat(DialogueFormat[Messages]):
    """Fields: the turns; optionally the system text."""

    def recognises(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether the record has the field, and its turns are not texts alone."""
        return super().recognises(record) and not are_texts(record[self.fields[0]])

    def value(self, record: Mapping[str, JsonValue]) -> Messages:
        """Returns the chat of a record; see DialogueFormat.value."""
        (field,) = self.fields
        return with_system(record, checked_conversation(read_named_turns(record[field], field, weighed=True)))


def read_named_turns(turns: JsonValue, field: str, weighed: bool = False) -> Messages:
    """Returns a list of {"from", "value"} or {"role", "content"} as messages, by the names in its first turn; see `read_turns`."""
    first = turns[0] if isinstance(turns, list) and turns else None
    named = ("role", "content") if isinstance(first, dict) and "role" in first else ("from", "value")
    return read_turns(turns, field, *named, roles=SPEAKERS, weighed=weighed)
