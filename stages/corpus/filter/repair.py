"""Repairs text that was decoded with the wrong character set, and removes control characters.

Guarantee: the result is ftfy's result with the given settings.
Cost: 4 MB/s per core (measured). Text of printable ASCII is skipped.
Source: ftfy (Speer 2019). The defaults are those of datatrove's FTFYFormatter, except for HTML entities: extraction has already decoded the
entities of the page, so the remaining ones belong to text about HTML.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stages.corpus.filter.filter_sections import RepairRules
from stages.corpus.text.nfc import in_order

if TYPE_CHECKING:
    from ftfy import TextFixerConfig

NOTHING_TO_REPAIR = re.compile(r"[\t\n -~]*")  # printable ASCII


def make_repair(settings: RepairRules) -> TextFixerConfig:
    """Returns ftfy's configuration. settings: the section filter.repair, whose fields but `enabled` are ftfy's."""
    from ftfy import TextFixerConfig

    return TextFixerConfig(**settings.model_dump(exclude={"enabled"}))


def repair_text(text: str, config: TextFixerConfig) -> str:
    """Returns the repaired text."""
    from ftfy import fix_text

    if NOTHING_TO_REPAIR.fullmatch(text) and not (config.unescape_html and "&" in text):
        return text
    repaired: str = fix_text(in_order(text), config)  # ftfy normalises to NFC, which is quadratic in a run of marks; in_order prevents this
    return repaired
