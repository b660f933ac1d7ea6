"""Two conversations that differ in their last turn: the better one and the worse one. The turns that they share are the prompt.

Source: TRL's preference format with an implicit prompt (extract_prompt).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.dialogue_formats.uncarried import PROMPTS
from stages.examples.items.dialogue import Pair, read_conversation_pair

if TYPE_CHECKING:
    from pydantic import JsonValue


class MessagePairFormat(DialogueFormat[Pair]):
    """Fields: chosen and rejected; optionally the system text."""

    def recognises(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether chosen and rejected are lists of messages and no field holds a prompt."""
        return not any(field in record for field in PROMPTS) and all(isinstance(record.get(field), list) for field in self.fields)

    def value(self, record: Mapping[str, JsonValue]) -> Pair:
        """Returns the pair of a record; see DialogueFormat.value."""
        pair = read_conversation_pair(record["chosen"], record["rejected"])
        return replace(pair, prompt=with_system(record, pair.prompt))
