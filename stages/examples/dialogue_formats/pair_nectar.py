"""The format of Nectar: a transcript and answers to it, each with a rank. The best and the worst are the pair.

Source: Zhu et al. 2023, Nectar (prompt as "Human: … Assistant: ", answers with answer and rank).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.dialogue_formats.pair_hh_rlhf import is_transcript, read_transcript
from stages.examples.dialogue_formats.pair_ultrafeedback import best_and_worst, rated
from stages.examples.items.dialogue import Pair, checked_pair

if TYPE_CHECKING:
    from pydantic import JsonValue


class NectarFormat(DialogueFormat[Pair]):
    """Fields: the prompt and the answers as a list of {"answer", "rank"}; optionally the system text."""

    def recognises(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether the record has a list of answers to a transcript."""
        return super().recognises(record) and isinstance(record["answers"], list) and is_transcript(record["prompt"])

    def value(self, record: Mapping[str, JsonValue]) -> Pair:
        """Returns the pair of a record; see DialogueFormat.value."""
        ranked = [(text, -rank) for text, rank in rated(record["answers"], "answers", "answer", "rank")]
        chosen, rejected = best_and_worst(ranked, "answers")
        return checked_pair(with_system(record, read_transcript(record["prompt"], "prompt")), chosen, rejected)
