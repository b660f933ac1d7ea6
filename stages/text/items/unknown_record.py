"""What a record is that no benchmark format reads: a chat, a preference pair, or a record that resembles a benchmark item.

Guarantee: the fields of the record decide.
Cost: negligible.
Source: the registries of formats (tasks.py, stages/text/dialogue_formats).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.text.dialogue_formats.chat_formats import CHAT_FORMATS
from stages.text.dialogue_formats.pair_formats import PAIR_FORMATS
from stages.text.items.tasks import FORMATS, suggested

if TYPE_CHECKING:
    from pydantic import JsonValue


def unknown_record(record: Mapping[str, JsonValue], task: str) -> tuple[str, str]:
    """Returns what is wrong with a file, as the end of a sentence that begins with the file, and what to do.

    Args:
        record: Its first record, with the fields of the format.
        task: The file's task.
    """
    pair = next((known.name for known in PAIR_FORMATS if known.recognises(record)), "")
    chat = next((known.name for known in CHAT_FORMATS if known.recognises(record)), "")
    if pair or chat:
        what, node = ("preference pairs", "preferences") if pair else ("chats", "conversations")
        return f"holds {what} in the format {pair or chat}, not benchmark items", f"Name the file in {node}.files."
    like = suggested(record)
    hint = f"{like[0]} Write benchmarks.fields: {{{task}: {like[1]}}}. " if like else ""
    known = "; ".join(known.name for known in FORMATS)
    return "has a format that Loam does not know", f"{hint}Give JSON Lines with one of these sets of fields: {known}."
