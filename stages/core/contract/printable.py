r"""Makes text that Loam did not write safe for a terminal: replaces characters that would steer it by visible escapes.

Guarantee: the result has no control character (C0, C1, DEL), no mark that changes the direction of text, no line or paragraph separator and
no half of a surrogate pair. `printable` keeps line breaks and tabs. All other characters are unchanged. The escapes are readable: an escape
character becomes \x1b, a right-to-left override becomes \u202e.
Cost: one substitution by a regular expression.
Source: Unicode's bidirectional controls (UAX 9); the C1 controls that terminals obey (ECMA-48).
"""

from __future__ import annotations

import re

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Returns the text with terminal controls replaced by visible escapes. Line breaks and tabs stay."""
    return STEERING.sub(lambda found: _written(found[0]), text)


def one_line(text: str) -> str:
    """Returns the text as `printable` does, also with escapes for line breaks and tabs: for a cell of a table or a line of a log."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
