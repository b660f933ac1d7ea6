"""E-mail addresses, IP addresses and phone numbers in a text, replaced by a word that says what was there.

Guarantee: the same text gives the same text, in any order of documents (datatrove's PIIFormatter takes its replacements in turn, so that
there it depends on the documents before); what is replaced holds nothing that a second pass would find.
Source: patterns and the test for public addresses are those of the installed datatrove's PIIFormatter; an address that goes on as
digits or dots (a version, an object identifier such as 1.3.6.1.4.1) is left alone, on purpose. Replacements: Dolma's (Soldaini et al. 2024).
Phone numbers: Dolma's form of ten digits, but with separators or brackets, since bare digits are mostly other numbers (measured on
3,343 manual pages: 268 hits, none of them one), and international numbers with separators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("emails", "ips", "phones")
COLUMNS = {f"pii_{kind}": "int64" for kind in KINDS}
"""Decision columns: how many of each kind the text had."""
PHONES = re.compile(
    r"(?<![\w.+-])(?:\+\d{1,3}[ .-]\(?\d{1,4}\)?(?:[ .-]\d{2,8}){1,4}|\(\d{3}\) ?\d{3}[-. ]\d{4}|\d{3}[-.]\d{3}[-.]\d{4})(?![\w-]|\.\d)"
)


@dataclass(frozen=True)
class Pattern:
    """One kind. hint: a character without which a text has none. valid: whether a match is one."""

    kind: str
    hint: str
    expression: re.Pattern[str]
    valid: Callable[[re.Match[str]], bool]
    replacement: str


def make_patterns(settings: Mapping[str, Any]) -> tuple[Pattern, ...]:
    """The kinds that are on. settings: the section filter.pii, as plain values."""
    from datatrove.pipeline.formatters import PIIFormatter

    theirs = PIIFormatter(only_remove_public_ips=settings["public_ips_only"])
    public = theirs.ip_replacer.validator

    def address(found: re.Match[str]) -> bool:
        before, after = found.string[max(found.start() - 1, 0) : found.start()], found.string[found.end() : found.end() + 2]
        goes_on = before in set("0123456789.") or after[:1].isdigit() or (after[:1] == "." and after[1:].isdigit())
        return not goes_on and public(found.group())

    patterns = (
        Pattern("emails", "@", theirs.emails_replacer.regex, lambda _: True, settings["email_replacement"]),
        Pattern("ips", ".", theirs.ip_replacer.regex, address, settings["ip_replacement"]),
        Pattern("phones", "", PHONES, lambda _: True, settings["phone_replacement"]),
    )
    return tuple(pattern for pattern in patterns if settings["enabled"] and settings[pattern.kind])


def redact_text(text: str, patterns: tuple[Pattern, ...]) -> tuple[str, dict[str, int | None]]:
    """(the text with replacements, the values of COLUMNS: None for a kind that is off)."""
    counts: dict[str, int | None] = dict.fromkeys(COLUMNS)
    for pattern in patterns:
        text, count = _replace(text, pattern) if pattern.hint in text else (text, 0)
        counts[f"pii_{pattern.kind}"] = count
    return text, counts


def _replace(text: str, pattern: Pattern) -> tuple[str, int]:
    count = 0

    def replacement(found: re.Match[str]) -> str:
        nonlocal count
        if not pattern.valid(found):
            return found.group()
        count += 1
        return pattern.replacement

    return pattern.expression.sub(replacement, text), count
