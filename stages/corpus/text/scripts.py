"""Says which characters are of scripts that are written without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese and others.

Guarantee: the answer follows from the code point and its general category alone. Scripts with a mark between words or syllables (Tibetan,
Ethiopic) and Korean, which has spaces, are not among them.
Cost: a search in a short table per character.
Source: Unicode Standard Annex 24 (scripts), and Annex 14 for those whose lines break without spaces (Line_Break SA, AK, AP, AS). Whole blocks
are named here and not looked up in a library, so that the words of a text do not change with its version.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from enum import Enum


class Script(Enum):
    """What a character of a script without spaces writes: a meaning or a whole syllable of it, or a sound."""

    IDEOGRAPHIC = "ideographic"
    PHONETIC = "phonetic"


RADICALS = (0x2E80, 0x2FDF)
"""Symbols by category, but they stand for the ideographs that they fold to."""
# Han, Yi, Tangut, Khitan, Nushu
IDEOGRAPHS = (
    RADICALS, (0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303C), (0x3192, 0x319F), (0x3220, 0x3247), (0x3280, 0x32B0), (0x3400, 0x4DBF), (0x4E00, 0xA4CF),
    (0xF900, 0xFAFF), (0x16FE0, 0x18D8F), (0x1B170, 0x1B2FF), (0x1D360, 0x1D371), (0x20000, 0x3FFFD),
)  # fmt: skip
PHONETIC_BLOCKS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0x116D0, 0x116FF),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0xAA80, 0xAADF), (0x11700, 0x1174F),  # Tai Le, New Tai Lue, Tai Tham, Tai Viet, Ahom
    (0x1B00, 0x1B7F), (0x1BC0, 0x1BFF), (0xA980, 0xA9DF), (0xAA00, 0xAA5F),  # Balinese, Batak, Javanese, Cham
    (0x3031, 0x3035), (0x3041, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F),  # kana
    (0x3105, 0x312F), (0x31A0, 0x31BF),  # Bopomofo
    (0x11000, 0x1107F), (0x11300, 0x1137F), (0x11900, 0x1195F), (0x11EE0, 0x11EFF), (0x11F00, 0x11F5F),  # Brahmi, Grantha, and of the isles
)  # fmt: skip
_BLOCKS = sorted([(*block, Script.IDEOGRAPHIC) for block in IDEOGRAPHS] + [(*block, Script.PHONETIC) for block in PHONETIC_BLOCKS])
_STARTS = [start for start, _, _ in _BLOCKS]


def script_of(character: str) -> Script | None:
    """Returns the kind of script without spaces that a character is a letter, an ideographic number or a mark of; None for all others.

    Digits are of none, because a number is one word in every script.

    >>> [script_of(c) for c in "東か의๑。"]
    [<Script.IDEOGRAPHIC: 'ideographic'>, <Script.PHONETIC: 'phonetic'>, None, None, None]
    """
    code = ord(character)
    if code < _STARTS[0]:
        return None
    _, end, script = _BLOCKS[bisect_right(_STARTS, code) - 1]
    if code > end:
        return None
    if code >= 0x20000 or RADICALS[0] <= code <= RADICALS[1]:
        return script
    category = unicodedata.category(character)
    return script if category[0] in "LM" or (category in ("Nl", "No") and script == Script.IDEOGRAPHIC) else None
