"""A prompt and its completion, each as a text or as messages. The completion is also called response.

Source: TRL's prompt-completion format; the fine-tuning files of OpenAI's older models; llm-foundry (prompt/response).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.items.dialogue import Messages, checked_conversation, is_text, read_prompt, read_text, read_turns

if TYPE_CHECKING:
    from pydantic import JsonValue

RESPONSE = "response"


class PromptCompletionFormat(DialogueFormat[Messages]):
    """Fields: the prompt and its completion; optionally the system text."""

    def recognises(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether the record has a prompt and either a completion or a response. With both, the recipe must name the format."""
        return "prompt" in record and ("completion" in record) != (RESPONSE in record)

    def read(self, record: Mapping[str, JsonValue]) -> Messages:
        """Returns the chat of a record; see DialogueFormat.read."""
        if "completion" not in record and RESPONSE in record:
            record = {**record, "completion": record[RESPONSE]}
        return super().read(record)

    def value(self, record: Mapping[str, JsonValue]) -> Messages:
        """Returns the chat of a record; see DialogueFormat.value."""
        prompt, completion = read_prompt(record["prompt"], "prompt"), record["completion"]
        if isinstance(completion, list) and not is_text(completion):
            answer = checked_conversation(read_turns(completion, "completion", weighed=True))
        else:
            answer = [{"role": "assistant", "content": read_text(completion, "completion")}]
        return with_system(record, [*prompt, *answer])
