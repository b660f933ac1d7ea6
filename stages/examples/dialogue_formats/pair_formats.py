"""The registry of the formats of preference pairs.

A format is one file with one class. To add a format, import its class here and add one entry. The entries are explicit and not discovered,
because the digest of a stage's code follows imports: a discovered file would be missing from the digest.
"""

from __future__ import annotations

from stages.examples.dialogue_formats.dialogue_format import DialogueFormat
from stages.examples.dialogue_formats.pair_helpsteer import FIELDS, HelpSteerFormat
from stages.examples.dialogue_formats.pair_hh_rlhf import HhRlhfFormat
from stages.examples.dialogue_formats.pair_history import HistoryPairFormat
from stages.examples.dialogue_formats.pair_messages import MessagePairFormat
from stages.examples.dialogue_formats.pair_nectar import NectarFormat
from stages.examples.dialogue_formats.pair_prompt import PromptPairFormat
from stages.examples.dialogue_formats.pair_two_answers import TwoAnswersFormat
from stages.examples.dialogue_formats.pair_ultrafeedback import UltraFeedbackFormat
from stages.examples.items.dialogue import Pair

PAIR_FORMATS: tuple[DialogueFormat[Pair], ...] = (
    PromptPairFormat("prompt_pair", ("prompt", "chosen", "rejected"), ("system",)),
    PromptPairFormat("instruction_pair", ("instruction", "chosen", "rejected"), ("input", "system")),
    PromptPairFormat("orca", ("question", "chosen", "rejected"), ("system",)),
    MessagePairFormat("message_pair", ("chosen", "rejected"), ("system",)),
    HistoryPairFormat("sharegpt_pair", ("conversations", "chosen", "rejected"), ("system",)),
    HistoryPairFormat("history_pair", ("messages", "chosen", "rejected"), ("system",)),
    HhRlhfFormat("hh_rlhf", ("chosen", "rejected"), ("prompt", "system")),
    UltraFeedbackFormat("ultrafeedback", ("instruction", "completions"), ("system",)),
    NectarFormat("nectar", ("prompt", "answers"), ("system",)),
    TwoAnswersFormat("shp", ("history", "human_ref_A", "human_ref_B", "labels"), ("system",), 0.5),
    HelpSteerFormat("helpsteer", FIELDS, ("system",)),
    TwoAnswersFormat("helpsteer3", ("context", "response1", "response2", "overall_preference"), ("system",)),
)
"""The first format reads a record that others recognise too."""
