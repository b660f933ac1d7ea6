"""The registry of the formats of chats.

A format is one file with one class. To add a format, import its class here and add one entry. The entries are explicit and not discovered,
because the digest of a stage's code follows imports: a discovered file would be missing from the digest.
"""

from __future__ import annotations

from stages.examples.dialogue_formats.chat_alpaca import AlpacaFormat
from stages.examples.dialogue_formats.chat_alternating import AlternatingFormat
from stages.examples.dialogue_formats.chat_messages import MessagesFormat
from stages.examples.dialogue_formats.chat_oasst_tree import OasstTreeFormat
from stages.examples.dialogue_formats.chat_prompt_completion import PromptCompletionFormat
from stages.examples.dialogue_formats.chat_question import QuestionFormat
from stages.examples.dialogue_formats.chat_sharegpt import ShareGptFormat
from stages.examples.dialogue_formats.dialogue_format import DialogueFormat
from stages.examples.items.dialogue import Messages

CHAT_FORMATS: tuple[DialogueFormat[Messages], ...] = (
    MessagesFormat("messages", ("messages",), ("system",)),
    ShareGptFormat("sharegpt", ("conversations",), ("system",)),
    AlpacaFormat("alpaca", ("instruction", "output"), ("input", "system", "history")),
    PromptCompletionFormat("prompt_completion", ("prompt", "completion"), ("system",)),
    QuestionFormat("dolly", ("instruction", "response"), ("context", "system")),
    QuestionFormat("openorca", ("question", "response"), ("system",)),
    QuestionFormat("metamath", ("query", "response"), ("system",)),
    ShareGptFormat("wildchat", ("conversation",), ("system",)),
    AlternatingFormat("ultrachat", ("data",), ("system",)),
    AlternatingFormat("lima", ("conversations",), ("system",)),
    OasstTreeFormat("oasst_tree", ("message_tree_id", "prompt"), ("system",)),
)
"""The first format reads a record that others recognise too: many data sets keep the fields from which they made their messages."""
