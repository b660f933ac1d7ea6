"""The words of matching by properties of Unicode, as plain Python: shares no code with stages/corpus/text. Made texts in five languages."""

from __future__ import annotations

import random
import unicodedata
from functools import cache

import regex

_OF_MEANING = r"\p{scx=Han}\p{Script=Yi}\p{Script=Tangut}\p{Script=Nushu}\p{Script=Khitan_Small_Script}"
_OF_SOUND = r"\p{scx=Hiragana}\p{scx=Katakana}\p{Script=Bopomofo}\p{scx=Javanese}\p{Line_Break=SA}" + "".join(
    rf"\p{{Script={name}}}" for name in ("Balinese", "Batak", "Cham", "Brahmi", "Grantha", "Dives_Akuru", "Makasar", "Kawi", "Ahom")
)
_RADICALS = r"[\u2e80-\u2fdf]"
IDEOGRAPHS = regex.compile(
    rf"(?V1)[[{_OF_MEANING}]&&[\p{{L}}\p{{Nl}}\p{{No}}\p{{M}}{_RADICALS}]--[\p{{Script=Hiragana}}\p{{Script=Katakana}}]]"
)
SPACELESS = regex.compile(rf"(?V1){IDEOGRAPHS.pattern.removeprefix('(?V1)')}|[[{_OF_SOUND}]&&[\p{{L}}\p{{M}}]]")
IGNORABLE = regex.compile(r"(?!\u200b)\p{Default_Ignorable_Code_Point}")

_VOCABULARY = {
    "en": ([a + b + c for a in "bdfgklmnprst" for b in ("a", "e", "io", "ou") for c in ("n", "rt", "sting", "ver", "l")], " ", ". "),
    "zh": ([chr(0x4E00 + 7 * k) + (chr(0x5E00 + 5 * k) if k % 3 else "") for k in range(400)], "", "。"),
    "ja": ([chr(0x6000 + 11 * k) + "のはをにがでっ"[k % 7] + ("カード", "させる", "ぱ")[k % 3] for k in range(300)], "", "。"),
    "th": ([a + b + c for a in "กขคงจชดตทน" for b in ("า", "ี", "้ำ", "ู") for c in ("น", "งค์", "ม", "แล", "ไป")], "", " "),
    "km": ([a + b + c for a in "កខគចជដតនបម" for b in ("ា", "ី", "្រ", "េ") for c in ("ន", "ំ", "មួយ", "សារ", "ង់")], "", "។ "),
}


def sentences(language: str, seed: int, count: int) -> list[str]:
    """Returns made sentences of 8 to 16 words: English, Chinese, Japanese, Thai or Khmer by their characters, without a meaning."""
    chance, (words, between, end) = random.Random(f"{language} {seed}"), _VOCABULARY[language]
    return [between.join(chance.choices(words, k=chance.randint(8, 16))) + end for _ in range(count)]


def fold(text: str) -> str:
    """Returns NFKC_Casefold in decomposed form."""
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text.casefold()).casefold())


def plain(text: str) -> list[str]:
    """Returns the words: runs of word characters and marks after them; of a script without spaces, a character and marks after it."""
    words: list[str] = []
    open_word = ""  # "run", "character", or nothing
    for character in text:
        if IGNORABLE.match(character):
            continue
        spaceless = SPACELESS.match(character) is not None
        for part in fold(character) if spaceless else character:
            if unicodedata.category(part)[0] == "M":
                if open_word:
                    words[-1] += part
            elif spaceless and SPACELESS.match(part) and not part.isdecimal():
                words.append(part)
                open_word = "character"
            elif part.isalnum() or part == "_":
                if open_word != "run":
                    words.append("")
                words[-1] += part
                open_word = "run"
            else:
                open_word = ""
    return [unicodedata.normalize("NFC", fold(word)) for word in words]


@cache
def sixths(word: str) -> int:
    """Returns what a word counts as, in sixths of a word."""
    return 5 if IDEOGRAPHS.match(word) else 2 if SPACELESS.match(word) else 6


def runs(words: list[str], n: int) -> list[tuple[str, ...]]:
    """Returns the shortest runs that count as n words, from every word on; of a shorter text all words."""
    found, sizes = [], list(map(sixths, words))
    for first in range(len(words)):
        last, size = first, 0
        while last < len(words) and size < 6 * n:
            size += sizes[last]
            last += 1
        if size >= 6 * n or first == 0:
            found.append(tuple(words[first:last]))
    return found
