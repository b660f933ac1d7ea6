"""Splits one chunk without blanks into spaCy's words in linear time. spaCy's own code takes quadratic time.

spaCy removes prefixes and suffixes one by one. Each time it copies, hashes and searches the whole rest (20,000 brackets: 32 s). Its test
for URLs rescans a chunk once per colon. This module only searches a window at each end, and enlarges the window while a match fills it.

Guarantee: the words equal those of spaCy's Tokenizer, with its own patterns and special cases. This relies on two assumptions, which hold
for English (tests/corpus/filter/test_long_chunk.py): every prefix pattern begins at the first character, and every affix except a run of
characters can be recognised within WINDOW characters. A language's `token_match` (French, Hungarian and others; English has none) is only
applied to texts of at most TOKEN_CHARS characters.
Cost: 1 to 7 µs per affix, 0.1 to 0.5 µs per other character.
Source: spaCy's Tokenizer (tokenizer.pyx), Explosion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

WINDOW, MARGIN = 32, 8
"""Characters in the first window, and the margin at its far end. A match that reaches into the margin doubles the window (lookbehinds see
3).
"""
TOKEN_CHARS = 1000
REMEMBERED = 1024  # cached windows: most of the cost comes from equal windows
USER, SAME_USER = r"(?:\S+(?::\S*)?@)?", r"(?:\S+@)?"
"""Part of spaCy's URL pattern, and a pattern that matches the same strings without backtracking for every colon."""

Search = Callable[[str], "re.Match[str] | None"]


class ChunkSplitter:
    """Splits chunks as one of spaCy's tokenizers does."""

    def __init__(self, tokenizer: Any) -> None:
        """Reads the rules of a spacy.tokenizer.Tokenizer."""
        from spacy.symbols import ORTH

        self._prefix: Search | None = _pattern(tokenizer.prefix_search, "match")
        self._suffix: Search | None = tokenizer.suffix_search
        self._first_prefix, self._first_suffix = (search and lru_cache(REMEMBERED)(search) for search in (self._prefix, self._suffix))
        self._infixes: Callable[[str], Iterable[re.Match[str]]] | None = tokenizer.infix_finditer
        self._token: Search | None = tokenizer.token_match
        self._url: Search | None = _pattern(tokenizer.url_match, "match")
        self._special: dict[str, list[str]] = {}
        self._longest = 0
        self._sequences: dict[str, list[tuple[str, ...]]] = {}
        special = {text: [str(token[ORTH]) for token in tokens] for text, tokens in tokenizer.rules.items()}
        for text in special:
            if not any(map(str.isspace, text)) and self._has_affix(text):
                words = tuple(self._affixes(text))  # must run while _special is still empty
                self._sequences.setdefault(words[0], []).append(words)
        self._special, self._longest = special, max(map(len, special), default=0)

    def words(self, chunk: str) -> list[str]:
        """Returns the words of a chunk. The chunk contains no white space."""
        return self._joined(self._affixes(chunk))

    def _affixes(self, chunk: str) -> list[str]:
        """Returns prefixes, middle and suffixes of a chunk, as spaCy's _split_affixes and _attach_tokens do."""
        low, high, last = 0, len(chunk), -1
        before: list[str] = []
        after: list[str] = []
        while low < high and high - low != last:
            last = high - low
            if self._is_token(chunk, low, high) or self._is_special(chunk, low, high):
                break
            prefix = self._prefix_chars(chunk, low, high)
            if prefix and self._is_special(chunk, low + prefix, high):
                before.append(chunk[low : low + prefix])
                low += prefix
                break
            suffix = self._suffix_chars(chunk, low + prefix, high)
            if suffix and self._is_special(chunk, low, high - suffix):
                after.append(chunk[high - suffix : high])
                high -= suffix
                break
            if prefix:
                before.append(chunk[low : low + prefix])
                low += prefix
            if suffix:
                after.append(chunk[high - suffix : high])
                high -= suffix
        return [*before, *(self._middle(chunk[low:high]) if low < high else []), *reversed(after)]

    def _middle(self, text: str) -> list[str]:
        if text in self._special:
            return self._special[text]
        if self._is_token(text, 0, len(text)) or (self._url and self._url(text)):
            return [text]
        words = []
        start = 0
        for found in self._infixes(text) if self._infixes else ():
            if not found.start():
                continue
            words += [text[start : found.start()], found.group()]
            start = found.end()
        return [word for word in (*words, text[start:]) if word]

    def _joined(self, words: list[str]) -> list[str]:
        """Returns the words after special cases.

        Words that together spell a special case are replaced by its words, the longest case first, then the leftmost (spaCy's
        _apply_special_cases).
        """
        found = [
            (len(sequence), start)
            for start, word in enumerate(words)
            for sequence in self._sequences.get(word, ())
            if tuple(words[start : start + len(sequence)]) == sequence
        ]
        if not found:
            return words
        found.sort(key=lambda match: (-match[0], match[1]))
        seen: set[int] = set()
        ends: dict[int, int] = {}
        for length, start in found:
            if start not in seen and start + length - 1 not in seen:
                ends[start] = start + length
            seen.update(range(start, start + length))
        joined: list[str] = []
        at = 0
        while at < len(words):
            end = ends.get(at)
            joined += [words[at]] if end is None else self._special["".join(words[at:end])]
            at = end or at + 1
        return joined

    def _has_affix(self, text: str) -> bool:
        return bool(
            self._prefix_chars(text, 0, len(text)) or self._suffix_chars(text, 0, len(text)) or (self._infixes and any(self._infixes(text)))
        )

    def _is_special(self, chunk: str, low: int, high: int) -> bool:
        return high - low <= self._longest and chunk[low:high] in self._special

    def _is_token(self, chunk: str, low: int, high: int) -> bool:
        return self._token is not None and high - low <= TOKEN_CHARS and self._token(chunk[low:high]) is not None

    def _prefix_chars(self, chunk: str, low: int, high: int) -> int:
        search: Search | None = self._first_prefix
        window = WINDOW
        while search:
            found = search(chunk[low : min(high, low + window)])
            if found is None:
                return 0
            if low + window >= high or found.end() <= window - MARGIN:
                return found.end()
            search, window = self._prefix, window * 2
        return 0

    def _suffix_chars(self, chunk: str, low: int, high: int) -> int:
        search: Search | None = self._first_suffix
        window = WINDOW
        while search:
            found = search(chunk[max(low, high - window) : high])
            if found is None:
                return 0
            if high - window <= low or found.start() >= MARGIN:
                return found.end() - found.start()
            search, window = self._suffix, window * 2
        return 0


def _pattern(method: Any, name: str) -> Any:
    """Returns method `name` of the compiled pattern that `method` belongs to, with USER replaced by SAME_USER; None for None."""
    if method is None:
        return None
    pattern = getattr(method, "__self__", None)
    if not isinstance(pattern, re.Pattern):
        return method
    return getattr(re.compile(pattern.pattern.replace(USER, SAME_USER), pattern.flags), name)
