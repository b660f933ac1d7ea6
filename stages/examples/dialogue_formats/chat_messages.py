"""The messages format of chat APIs: a list of {"role", "content"}.

Source: the chat completions API of OpenAI; TRL's conversational format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.items.dialogue import BadDialogueError, Messages, read_messages

if TYPE_CHECKING:
    from pydantic import JsonValue


class MessagesFormat(DialogueFormat[Messages]):
    """Fields: the messages."""

    def value(self, record: Mapping[str, JsonValue]) -> Messages:
        """Returns the chat of a record; see DialogueFormat.value.

        Raises:
            BadDialogueError: The messages are those of ShareGPT.
        """
        messages = record["messages"]
        first = messages[0] if isinstance(messages, list) and messages else None
        if isinstance(first, dict) and "from" in first and "value" in first and "role" not in first:
            raise BadDialogueError(
                "messages[0] has no role, but a field 'from' as in ShareGPT: write format: sharegpt and fields: {conversations: messages}"
            )
        return with_system(record, read_messages(messages))
