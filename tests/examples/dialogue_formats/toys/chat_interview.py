"""A toy: a question and a reply with a comment. CONTRIBUTING.md shows it as the example of a new format of chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat
from stages.examples.items.dialogue import Messages, read_text

if TYPE_CHECKING:
    from pydantic import JsonValue


class InterviewFormat(DialogueFormat[Messages]):
    """Fields: what the interviewer says, and what the guest says."""

    def value(self, record: Mapping[str, JsonValue]) -> Messages:
        """Returns the chat of a record; see DialogueFormat.value."""
        asked, said = (read_text(record[field], field) for field in self.fields)
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
