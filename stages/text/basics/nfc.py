"""Unicode's form NFC, in time that grows with the length of a text; Python's takes the square of a run of combining marks.

Guarantee: `unicodedata.normalize("NFC", text)`, always: marks are put in canonical order first, which NFC does to them anyway (a stable sort by
combining class within each run), but one by one (100,000 marks: 12 s). Cost: that of NFC and one search. Source: Unicode, section 3.11.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

LONG_RUN = 30  # Unicode's Stream-Safe Text Format takes no longer run for meant (UAX 15)


def compose(text: str) -> str:
    """The text in form NFC."""
    return unicodedata.normalize("NFC", in_order(text))


def in_order(text: str) -> str:
    """The text with long runs of marks in canonical order: the same text to Unicode, and its NFC is soon made."""
    if text.isascii():
        return text
    return _long_runs().sub(lambda run: "".join(sorted(run.group(), key=unicodedata.combining)), text)


@cache
def _long_runs() -> re.Pattern[str]:
    marks = "".join(letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(letter))
    return re.compile(f"[{re.escape(marks)}]{{{LONG_RUN},}}")
