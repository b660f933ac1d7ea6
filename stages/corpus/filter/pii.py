"""Replaces e-mail addresses, IP addresses and phone numbers in a text by a word that names their kind.

Guarantee: the same text always gives the same result, in any order of documents. (datatrove's PIIFormatter uses its replacements in turn,
so its result depends on the documents before.) A second run over the result finds nothing. Time grows linearly with the length of any text.
datatrove's e-mail pattern takes quadratic time on a long run of words and dots; here the search starts at each "@".
Source: the patterns and the test for public addresses come from the installed datatrove's PIIFormatter. Deliberate difference from
datatrove: an address that continues with digits or dots is kept (a version, an object identifier such as 1.3.6.1.4.1). Replacements:
Dolma's (Soldaini et al. 2024). Phone numbers: Dolma's form of ten digits, but with separators or brackets, because bare digits are mostly
other numbers (measured on 3,343 manual pages: 268 matches, no phone number among them); also international numbers with separators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stages.corpus.filter.filter_sections import RedactionRules

KINDS = ("emails", "ips", "phones")
COLUMNS = tuple(f"pii_{kind}" for kind in KINDS)
"""Names of the signals (OF_PII in stages/corpus/filter/stored_signals.py): how many of each kind the text had."""
PHONES = re.compile(
    r"(?<![\w.+-])(?:\+\d{1,3}[ .-]\(?\d{1,4}\)?(?:[ .-]\d{2,8}){1,4}|\(\d{3}\) ?\d{3}[-. ]\d{4}|\d{3}[-.]\d{3}[-.]\d{4})(?![\w-]|\.\d)"
)


@dataclass(frozen=True)
class Pattern:
    """One kind of personal data.

    Attributes:
        kind: Name of the kind.
        hint: A string that every text with this kind contains. "" searches every text.
        find: Function that yields the (start, end) positions in a text, from left to right.
        replacement: Text that replaces each match.
    """

    kind: str
    hint: str
    find: Callable[[str], Iterator[tuple[int, int]]]
    replacement: str


def make_patterns(settings: RedactionRules) -> tuple[Pattern, ...]:
    """Returns the patterns of the kinds that are on. settings: the section filter.pii."""
    from datatrove.pipeline.formatters import PIIFormatter

    theirs = PIIFormatter(only_remove_public_ips=settings.public_ips_only)
    public = theirs.ip_replacer.validator

    def addresses(text: str) -> Iterator[tuple[int, int]]:
        for found in theirs.ip_replacer.regex.finditer(text):
            before, after = text[max(found.start() - 1, 0) : found.start()], text[found.end() : found.end() + 2]
            goes_on = before in set("0123456789.") or after[:1].isdigit() or (after[:1] == "." and after[1:].isdigit())
            if not goes_on and public(found.group()):
                yield found.span()

    patterns = (
        Pattern("emails", "@", _emails(theirs.emails_replacer.regex.pattern), settings.email_replacement),
        Pattern("ips", ".", addresses, settings.ip_replacement),
        Pattern("phones", "", lambda text: (found.span() for found in PHONES.finditer(text)), settings.phone_replacement),
    )
    on = {"emails": settings.emails, "ips": settings.ips, "phones": settings.phones}
    return tuple(pattern for pattern in patterns if settings.enabled and on[pattern.kind])


def redact_text(text: str, patterns: tuple[Pattern, ...]) -> tuple[str, dict[str, int | None]]:
    """Returns (the text with replacements, the values of COLUMNS; None for a kind that is off)."""
    counts: dict[str, int | None] = dict.fromkeys(COLUMNS)
    for pattern in patterns:
        text, count = _replace(text, pattern) if pattern.hint in text else (text, 0)
        counts[f"pii_{pattern.kind}"] = count
    return text, counts


def _emails(pattern: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    r"""Returns a function that finds the matches of datatrove's pattern, \bWORD+(?:\.WORD+)*@DOMAIN.

    It searches each "@" that a domain follows. The match starts at the first word after the last two consecutive dots before the "@".

    Raises:
        ValueError: The pattern of the installed datatrove has another form.
    """
    local, _, domain = pattern.partition("@")
    word = local.removeprefix(r"\b").partition("]")[0] + "]"
    if local != rf"\b{word}+(?:\.{word}+)*":
        raise ValueError(f"datatrove's pattern of e-mail addresses has another form now: {pattern}")
    runs, first, rest = re.compile(rf"([.{word[1:]}+)@?"), re.compile(rf"\b{word}"), re.compile(domain)

    def find(text: str) -> Iterator[tuple[int, int]]:
        end = 0  # end of the previous match
        for run in runs.finditer(text):
            start, at = run.span(1)
            if at == run.end() or text[at - 1] == ".":
                continue
            dots = text.rfind("..", start, at)
            begins = first.search(text, max(end, start if dots < 0 else dots + 2), at)
            found = rest.match(text, at + 1) if begins else None
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
