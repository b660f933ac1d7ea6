"""The turns before the answer, and beside them a better and a worse answer as one turn each.

Source: LLaMA-Factory's preference data in the ShareGPT format (conversations, and chosen and rejected as {"from", "value"}) and in that of
OpenAI (messages, and both as {"role", "content"}).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.chat_sharegpt import read_named_turns
from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.items.dialogue import BadDialogueError, Pair, pair_of_turns

if TYPE_CHECKING:
    from pydantic import JsonValue


class HistoryPairFormat(DialogueFormat[Pair]):
    """Fields: the turns, chosen and rejected; optionally the system text."""

    def recognises(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether the record has the turns as a list, and both answers as objects."""
        turns, *answers = (record.get(field) for field in self.fields)
        return isinstance(turns, list) and all(isinstance(answer, dict) for answer in answers)

    def value(self, record: Mapping[str, JsonValue]) -> Pair:
        """Returns the pair of a record; see DialogueFormat.value.

        Raises:
            BadDialogueError: An answer is not a turn of the assistant.
        """
        history, *answers = self.fields
        prompt = with_system(record, read_named_turns(record[history], history))
        turns = []
        for field in answers:
            (turn,) = read_named_turns([record[field]], field)
            if turn["role"] != "assistant":
                raise BadDialogueError(f"{field} is a turn of the {turn['role']}, and an answer is one of the assistant")
            turns.append(turn)
        return pair_of_turns(prompt, *turns)
