"""Splits text into the words that deduplication and decontamination compare, with a 64-bit hash of each word.

A word is a run of letters, digits, `_` and the marks that follow them. All other characters separate words. Words are compared after
Unicode's NFKC_Casefold: case, composition (é as one or two characters), width and compatibility forms make no difference. Soft hyphens and
other default-ignorable characters are skipped. Text in a script without spaces is one word between punctuation marks.
Guarantee: the hash of a word depends on its folded characters alone, up to the order of several marks on one letter.
Cost: about 250 MB/s of UTF-8 per core; a table of 4.5 MB, built in 0.2 s per process.
Source: Unicode Standard Annexes 29 and 44 (characters that continue a word, default-ignorable characters, NFKC_Casefold); the finalizer is
MurmurHash3's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from stages.text.basics.native import compiled
from stages.text.basics.nfc import compose

# Default_Ignorable_Code_Point (DerivedCoreProperties.txt) without the zero width space: a line may break there, so it separates words.
IGNORABLE = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200C, 0x200F), (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
# Classes in the low 2 bits of a table entry. The bits above hold the folded character, or the index of several in `Folding.several`.
SEPARATOR, ONE, SEVERAL, MARK = 0, 1, 2, 3
PASSED_OVER = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Folding:
    """Class and folded form of every code point. several: length and code points of each folded form that is not one character."""

    table: np.ndarray  # uint32 [0x110000]
    several: np.ndarray  # uint32


@dataclass(frozen=True)
class Words:
    """The words of several texts, one text after the other.

    Attributes:
        hashes: Hash of each word.
        offsets: Index of the first word of each text, and the number of words.
        first: Start of each word in the joined UTF-8, in bytes.
        last: End (exclusive) of each word in the joined UTF-8, in bytes.
    """

    hashes: np.ndarray  # uint64 [words]
    offsets: np.ndarray  # int64 [texts + 1]
    first: np.ndarray  # int64 [words]
    last: np.ndarray  # int64 [words]


def joined(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (uint8 [bytes], int64 [texts + 1]): the texts joined as UTF-8, and the byte offset of each text.

    Lone surrogates are encoded.
    """
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return np.frombuffer(b"".join(parts), np.uint8), ends


def hash_words(data: np.ndarray, starts: np.ndarray) -> Words:
    """Returns the words of texts in the form that `joined` returns (the form of an Arrow string column).

    Args:
        data: Joined UTF-8, uint8 [bytes].
        starts: Byte offset of each text, and the end, int64 [texts + 1].
    """
    fold = folding()
    size = int(starts[-1] - starts[0])
    hashes, offsets = np.empty(size // 2 + len(starts), np.uint64), np.empty(len(starts), np.int64)
    first, last = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.int64)
    count = compiled(_hash_words)(data, starts, fold.table, fold.several, hashes, offsets, first, last)
    return Words(hashes[:count], offsets, first[:count], last[:count])


def normalise_words(text: str) -> list[str]:
    """Returns the folded words of a text, composed (NFC).

    >>> normalise_words("Don't  STOP: see <b>`x_1`</b>")
    ['don', 't', 'stop', 'see', 'b', 'x_1', 'b']
    """
    data, starts = joined([text])
    found = hash_words(data, starts)
    raw = data.tobytes()
    return [folded_word(raw[a:b]) for a, b in zip(found.first.tolist(), found.last.tolist(), strict=True)]


def folded_word(word: bytes) -> str:
    """Returns a UTF-8 word in the form that matching compares: NFKC_Casefold.

    >>> folded_word("Cafe\u0301".encode()) == folded_word("CAFÉ".encode()) == "café"
    True
    """
    if word.isascii():
        return word.decode().lower()
    return compose("".join(map(fold_character, word.decode("utf-8", "surrogatepass"))))


def fold_character(character: str) -> str:
    """Returns NFKC_Casefold of one character in decomposed form; "" for a character that is skipped.

    >>> [fold_character(c) for c in ("A", "ﬁ", "５", "\u00ad")]
    ['a', 'fi', '5', '']
    """
    if any(low <= ord(character) <= high for low, high in IGNORABLE):
        return ""
    folded = character.casefold()
    if folded == character and not unicodedata.decomposition(character) and not "\uac00" <= character <= "\ud7a3":
        return character  # Hangul syllables are excluded above because they decompose by rule, not by table
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", folded).casefold())


@cache
def folding() -> Folding:
    """Returns the table over all code points, from this Python's Unicode data."""
    table = np.zeros(0x110000, np.uint32)
    several: list[int] = []
    for block in (range(0x32000), range(0xE0000, 0xE1000)):  # all others are unassigned or private characters, which separate words
        for code in block:
            table[code] = _entry(chr(code), several)
    return Folding(table, np.array(several, np.uint32))


def _entry(character: str, several: list[int]) -> int:
    code = ord(character)
    if code < 128:
        return ord(character.lower()) << 2 | ONE if character.isalnum() or character == "_" else SEPARATOR
    mark = unicodedata.category(character)[0] == "M"
    if not (mark or character.isalnum() or code == 0xAD or code >= 0x61C):
        return SEPARATOR
    folded = fold_character(character)
    if not folded:
        return int(PASSED_OVER)
    if mark and len(folded) == 1:
        return ord(folded) << 2 | MARK
    if not (mark or character.isalnum()):
        return SEPARATOR
    if len(folded) == 1:
        return ord(folded) << 2 | ONE
    several += [len(folded), *map(ord, folded)]
    return (len(several) - len(folded) - 1) << 2 | SEVERAL


def _hash_words(data, starts, table, several, hashes, offsets, first, last):  # type: ignore[no-untyped-def]
    """Returns the number of words, after hashes, offsets, first and last were filled. Kernel."""
    multiplier = np.uint64(0x9E3779B97F4A7C15)
    count = 0
    for text in range(len(starts) - 1):
        offsets[text] = count
        place, end = starts[text], starts[text + 1]
        inside = False
        value = np.uint64(0)
        tail = place
        while place < end:
            at = place
            code = np.uint32(data[place])
            if code < 0x80:
                place += 1
            elif code < 0xE0:
                code = (code & np.uint32(0x1F)) << np.uint32(6) | np.uint32(data[place + 1] & 0x3F)
                place += 2
            elif code < 0xF0:
                code = (
                    (code & np.uint32(0x0F)) << np.uint32(12)
                    | np.uint32(data[place + 1] & 0x3F) << np.uint32(6)
                    | np.uint32(data[place + 2] & 0x3F)
                )
                place += 3
            else:
                code = (
                    (code & np.uint32(0x07)) << np.uint32(18)
                    | np.uint32(data[place + 1] & 0x3F) << np.uint32(12)
                    | np.uint32(data[place + 2] & 0x3F) << np.uint32(6)
                    | np.uint32(data[place + 3] & 0x3F)
                )
                place += 4
            entry = table[code]
            kind = entry & np.uint32(3)
            if kind == 1 or (kind == 3 and inside and entry != np.uint32(0xFFFFFFFF)):
                if not inside:
                    inside = True
                    value = np.uint64(0)
                    first[count] = at
                value = (value ^ np.uint64(entry >> np.uint32(2))) * multiplier
                value ^= value >> np.uint64(32)
                tail = place
            elif kind == 2:
                if not inside:
                    inside = True
                    value = np.uint64(0)
                    first[count] = at
                where = entry >> np.uint32(2)
                for k in range(several[where]):
                    value = (value ^ np.uint64(several[where + 1 + k])) * multiplier
                    value ^= value >> np.uint64(32)
                tail = place
            elif kind == 0 and inside:
                inside = False
                value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
                hashes[count] = value ^ (value >> np.uint64(33))
                last[count] = tail
                count += 1
        if inside:
            value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
            hashes[count] = value ^ (value >> np.uint64(33))
            last[count] = tail
            count += 1
    offsets[len(starts) - 1] = count
    return count
