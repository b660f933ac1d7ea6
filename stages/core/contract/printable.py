"""Text of foreign origin made fit for a terminal: what would steer it is written out.

Guarantee: no control character (C0, C1, DEL), no mark that changes the direction of text, no line or paragraph separator and no half
surrogate pair is left; line breaks and tabs stay where the text is ours to lay out. All else is unchanged, and what is written out can
be read: an escape character as \\x1b, a right-to-left override as \\u202e. Cost: one pass of a regular expression.
Source: Unicode's bidirectional controls (UAX 9); the C1 controls that terminals obey (ECMA-48).
"""

from __future__ import annotations

import re

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with what would steer a terminal written out; line breaks and tabs stay."""
    return STEERING.sub(lambda found: _written(found[0]), text)


def one_line(text: str) -> str:
    """As `printable`, with line breaks and tabs written out too: for a cell of a table or a line of a log."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
