"""The format of UltraFeedback: an instruction, and completions that each have a score.

Two completions with different scores are a pair. With more, the data do not say which two are the pair: the binarized editions of
UltraFeedback choose differently. Such a record is refused.
Source: Cui et al. 2023, UltraFeedback (completions with response and overall_score).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat, with_system
from stages.examples.items.dialogue import BadDialogueError, Pair, checked_pair, read_prompt, read_text

if TYPE_CHECKING:
    from pydantic import JsonValue


class UltraFeedbackFormat(DialogueFormat[Pair]):
    """Fields: the instruction, and the completions as a list of {"response", "overall_score"}; optionally the system text."""

    def recognises(self, record: Mapping[str, JsonValue]) -> bool:
        """Returns whether the record has the fields and does not name the better and the worse answer itself."""
        return super().recognises(record) and not ("chosen" in record and "rejected" in record)

    def value(self, record: Mapping[str, JsonValue]) -> Pair:
        """Returns the pair of a record; see DialogueFormat.value.

        Raises:
            BadDialogueError: There are not two completions with a response and different scores.
        """
        rated = record["completions"]
        if not isinstance(rated, list) or len(rated) != 2:
            count = f"{len(rated)} completions" if isinstance(rated, list) else "no list of completions"
            raise BadDialogueError(
                f"the record has {count}, and a pair needs two: write the better one as 'chosen' and the worse one as 'rejected'"
            )
        (a, high), (b, low) = (_rated(one, f"completions[{number}]") for number, one in enumerate(rated))
        if high == low:
            raise BadDialogueError("both completions have the same overall_score, so neither is the better one")
        chosen, rejected = (a, b) if high > low else (b, a)
        return checked_pair(with_system(record, read_prompt(record["instruction"], "instruction")), chosen, rejected)


def _rated(value: JsonValue, where: str) -> tuple[str, float]:
    """Returns (the response, its score).

    Raises:
        BadDialogueError: One of the two is missing.
    """
    completion = value if isinstance(value, dict) else {}
    score = completion.get("overall_score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise BadDialogueError(f"{where} has no number overall_score")
    return read_text(completion.get("response"), f"{where}.response"), score
