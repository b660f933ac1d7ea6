"""Reads a record of a crawl as a page: whether it becomes a document, and its text, the marks of its lines, charset and opt-outs.

Guarantee: the result follows from the record and the rules alone.
Cost: decoding and parsing; 2 ms for a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stages.corpus.documents.line import Marks
from stages.corpus.extract.html import TooCostlyError, extract_text, tidy
from stages.corpus.extract.opt_outs import OptOut, opt_outs
from stages.corpus.extract.record_choice import is_plain_text, unwanted
from stages.corpus.extract.visible_text import visible_text
from stages.corpus.warc.charset import bad_frac, decode_page
from stages.corpus.warc.http_body import BodyFault
from stages.corpus.warc.page_reasons import PageReason
from stages.corpus.warc.records import WarcRecord

Engine = Literal["visible", "resiliparse", "trafilatura", "justext"]


class PageRules(Protocol):
    """The settings of extract that decide about one page (see ExtractConfig)."""

    @property
    def engine(self) -> Engine:
        """What is read of a page."""

    @property
    def statuses(self) -> Sequence[int]:
        """HTTP status codes of the pages to read."""

    @property
    def mimes(self) -> Sequence[str]:
        """Content types to read."""

    @property
    def drop_opt_outs(self) -> Sequence[OptOut]:
        """Opt-outs whose pages are dropped."""

    @property
    def max_bad_char_frac(self) -> float:
        """Largest share of undecodable characters."""

    @property
    def min_chars(self) -> int:
        """Shortest text, in characters."""


@dataclass(frozen=True)
class ExtractedPage:
    """What was extracted from a record.

    Attributes:
        reason: Why it is dropped; "" for a document.
        chars_in: Characters of the page; bytes where it was not decoded.
        text: The text; "" of a dropped record.
        marks: The marks of its lines; None if they have none, because the text is not all visible text of a page.
        encoding: The charset; None where it was not decoded.
        opt_outs: What the page says against its use.
        http_faults: How the stored body contradicts the HTTP header.
    """

    reason: str
    chars_in: int
    text: str = ""
    marks: Marks | None = None
    encoding: str | None = None
    opt_outs: tuple[OptOut, ...] = ()
    http_faults: tuple[BodyFault, ...] = ()


def read_page(record: WarcRecord, rules: PageRules) -> ExtractedPage:
    """Returns the verdict on a record and, of a document, its text.

    Args:
        record: A record of a WARC or WET file.
        rules: The settings of extract.
    """
    reason = unwanted(record, rules.statuses, rules.mimes)
    if reason:
        return ExtractedPage(reason, len(record.body) or record.size_bytes)
    is_page = not is_plain_text(record)
    page, encoding = decode_page(record.body, record.charset) if is_page else (record.body.decode("utf-8", "replace"), "utf-8")
    said = opt_outs(record.headers, page) if is_page else ()

    def dropped(reason: str) -> ExtractedPage:
        return ExtractedPage(reason, len(page), encoding=encoding, opt_outs=said, http_faults=record.faults)

    if bad_frac(page) > rules.max_bad_char_frac:
        return dropped(PageReason.CHARSET)
    if set(said) & set(rules.drop_opt_outs):
        return dropped(PageReason.OPTED_OUT)
    marks: Marks | None = None
    try:
        if not is_page:
            text = tidy(page)
        elif rules.engine == "visible":
            text, marks = visible_text(page, record.url)
        else:
            text = extract_text(page, rules.engine)
    except TooCostlyError as error:
        return dropped(error.reason)
    if len(text) < rules.min_chars:
        return dropped(PageReason.NO_TEXT)
    return ExtractedPage("", len(page), text, marks, encoding, said, record.faults)
