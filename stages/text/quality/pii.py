"""E-mail addresses, IP addresses and phone numbers in a text, replaced by a word that says what was there.

Guarantee: the same text gives the same text, in any order of documents (datatrove's PIIFormatter takes its replacements in turn, so that
there it depends on the documents before); what is replaced holds nothing that a second pass would find. Time grows with the length of the text,
whatever is in it: datatrove's pattern of addresses, which takes the square of a long run of words and dots, is looked for from each "@".
Source: patterns and the test for public addresses are those of the installed datatrove's PIIFormatter; an address that goes on as
digits or dots (a version, an object identifier such as 1.3.6.1.4.1) is left alone, on purpose. Replacements: Dolma's (Soldaini et al. 2024).
Phone numbers: Dolma's form of ten digits, but with separators or brackets, since bare digits are mostly other numbers (measured on
3,343 manual pages: 268 hits, none of them one), and international numbers with separators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("emails", "ips", "phones")
COLUMNS = tuple(f"pii_{kind}" for kind in KINDS)
"""Names of the signals (OF_PII in stages/text/quality/stored_signals.py): how many of each kind the text had."""
PHONES = re.compile(
    r"(?<![\w.+-])(?:\+\d{1,3}[ .-]\(?\d{1,4}\)?(?:[ .-]\d{2,8}){1,4}|\(\d{3}\) ?\d{3}[-. ]\d{4}|\d{3}[-.]\d{3}[-.]\d{4})(?![\w-]|\.\d)"
)


@dataclass(frozen=True)
class Pattern:
    """One kind. hint: a character without which a text has none. find: where it is in a text, from left to right."""

    kind: str
    hint: str
    find: Callable[[str], Iterator[tuple[int, int]]]
    replacement: str


def make_patterns(settings: Mapping[str, Any]) -> tuple[Pattern, ...]:
    """The kinds that are on. settings: the section filter.pii, as plain values."""
    from datatrove.pipeline.formatters import PIIFormatter

    theirs = PIIFormatter(only_remove_public_ips=settings["public_ips_only"])
    public = theirs.ip_replacer.validator

    def addresses(text: str) -> Iterator[tuple[int, int]]:
        for found in theirs.ip_replacer.regex.finditer(text):
            before, after = text[max(found.start() - 1, 0) : found.start()], text[found.end() : found.end() + 2]
            goes_on = before in set("0123456789.") or after[:1].isdigit() or (after[:1] == "." and after[1:].isdigit())
            if not goes_on and public(found.group()):
                yield found.span()

    patterns = (
        Pattern("emails", "@", _emails(theirs.emails_replacer.regex.pattern), settings["email_replacement"]),
        Pattern("ips", ".", addresses, settings["ip_replacement"]),
        Pattern("phones", "", lambda text: (found.span() for found in PHONES.finditer(text)), settings["phone_replacement"]),
    )
    return tuple(pattern for pattern in patterns if settings["enabled"] and settings[pattern.kind])


def redact_text(text: str, patterns: tuple[Pattern, ...]) -> tuple[str, dict[str, int | None]]:
    """(the text with replacements, the values of COLUMNS: None for a kind that is off)."""
    counts: dict[str, int | None] = dict.fromkeys(COLUMNS)
    for pattern in patterns:
        text, count = _replace(text, pattern) if pattern.hint in text else (text, 0)
        counts[f"pii_{pattern.kind}"] = count
    return text, counts


def _emails(pattern: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    """What finds the matches of datatrove's pattern, \\bWORD+(?:\\.WORD+)*@DOMAIN: an "@" with a domain behind it, and before it all words
    and dots as far back as the last two dots."""
    local, _, domain = pattern.partition("@")
    word = local.removeprefix(r"\b").partition("]")[0] + "]"
    if local != rf"\b{word}+(?:\.{word}+)*":
        raise ValueError(f"datatrove's pattern of e-mail addresses has another form now: {pattern}")
    runs, first, behind = re.compile(rf"([.{word[1:]}+)@?"), re.compile(rf"\b{word}"), re.compile(domain)

    def find(text: str) -> Iterator[tuple[int, int]]:
        end = 0  # of the match before
        for run in runs.finditer(text):
            start, at = run.span(1)
            if at == run.end() or text[at - 1] == ".":
                continue
            dots = text.rfind("..", start, at)
            begins = first.search(text, max(end, start if dots < 0 else dots + 2), at)
            found = behind.match(text, at + 1) if begins else None
            if begins and found:
                end = found.end()
                yield begins.start(), end

    return find


def _replace(text: str, pattern: Pattern) -> tuple[str, int]:
    pieces, end = [], 0
    for start, stop in pattern.find(text):
        pieces += [text[end:start], pattern.replacement]
        end = stop
    return "".join((*pieces, text[end:])), len(pieces) // 2
