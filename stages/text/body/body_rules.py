"""Decides which visible lines of a page are its body, from their marks and from what the crawl knows of the page's host.

The rules, in order; a line is removed by the first that names it:
1. frame: it is in a frame element. outside_main: it is outside the element main, where that holds at least half of the page's own text.
2. recurring: it is on many pages of the host. A short run of such lines between lines of text stays, unless it is on most pages: API
   headings, "Note", a closing brace.
3. title_row: a row at an edge whose cells recur on the host or are titles of its pages: previous, up, next.
4. listing: a long run of links within the site, with at most a few words each. own_contents: links to the page itself.
5. edge: links before the first and after the last other line; copyright lines at the end.
6. island: a few words left between removed lines.

Guarantee: a function of lines, counts and thresholds alone. Only frame elements, main elements and edges can remove code.
Cost: linear in the lines of the page, 3 µs per line.
Source: our own, tuned on one half of 120 judged pages, divided by host (tests/bench/bench_boilerplate.py reports the other half).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from stages.text.body.line import Line
from stages.text.body.line_keys import cells, normal, plain


class Removal(StrEnum):
    """Why a line is no body."""

    FRAME = "frame"
    OUTSIDE_MAIN = "outside_main"
    RECURRING = "recurring"
    TITLE_ROW = "title_row"
    LISTING = "listing"
    OWN_CONTENTS = "own_contents"
    EDGE = "edge"
    ISLAND = "island"


class BodyThresholds(Protocol):
    """The settings of boilerplate that decide about lines (see BoilerplateConfig)."""

    @property
    def min_pages(self) -> int:
        """A recurring line is on at least so many pages of its host."""

    @property
    def min_page_frac(self) -> float:
        """A recurring line is on at least this share of the pages of its host."""

    @property
    def min_text_page_frac(self) -> float:
        """The same for a line of text."""

    @property
    def always_frac(self) -> float:
        """A recurring line on this share of the pages is always removed."""

    @property
    def listing_lines(self) -> int:
        """A listing has at least so many entries."""

    @property
    def island_words(self) -> int:
        """At most so many words are an island."""


@dataclass(frozen=True)
class HostCounts:
    """What the crawl knows of a page's host.

    Attributes:
        pages: Number of its pages.
        of_lines: Number of its pages that each line of this page is on, in order.
        of_cells: Function from normal texts to the number of its pages that each is on, as a line or cell.
        titles: Function from normal texts to whether each is the title of one of its pages.
    """

    pages: int
    of_lines: Sequence[int]
    of_cells: Callable[[Sequence[str]], Sequence[int]]
    titles: Callable[[Sequence[str]], Sequence[bool]]


TEXT_CHARS = 60  # outside links: so long a line is a line of text, not a label
LINK = 0.8  # share of the characters in links from which a line is a link line
REPRIEVE = 3  # at most so many recurring lines in a row stay between lines of text
REST, HALF = 120, 0.5  # an entry of a listing begins with a link or is half of one, and has at most so many characters beside its links
DOUBT = 0.15  # a listing between kept lines that is shorter than this share of the page's text stays
PORTAL = 0.5  # of a page of which listings take more than this share, no listing stays
TOP_LINES, LAST_ROWS = 12, 4  # title rows are searched before the title, within so many lines, and at most so many after the text
COPYRIGHT, COPYRIGHT_CHARS = re.compile(r"^\W*(?:©|\(c\)\s|copyright\b|all rights reserved)", re.I), 200


def removals(lines: Sequence[Line], title: str, counts: HostCounts, limits: BodyThresholds) -> list[Removal | None]:
    """Returns why each line of a page is removed; None for lines of the body.

    Args:
        lines: The lines of the page that are not empty.
        title: The page's title (line_keys.title_of).
        counts: What is known of its host.
        limits: The thresholds.
    """
    page = _Page(lines, title, counts, limits)
    page.frames()
    page.recurring_lines()
    page.title_rows()
    page.listings()
    page.own_contents()
    page.edges()
    page.islands()
    return page.why


class _Page:
    """A page whose lines are judged, rule by rule. `why` has the removal of each line; None for those that stay so far."""

    def __init__(self, lines: Sequence[Line], title: str, counts: HostCounts, limits: BodyThresholds) -> None:
        self.lines, self.counts, self.limits = lines, counts, limits
        self.why: list[Removal | None] = [None] * len(lines)
        self.least = max(limits.min_pages, limits.min_page_frac * counts.pages)
        self.least_text = max(limits.min_pages, limits.min_text_page_frac * counts.pages)
        self.recurring = [
            on >= (self.least_text if line.chars - line.link_chars >= TEXT_CHARS else self.least)
            for line, on in zip(lines, counts.of_lines, strict=True)
        ]
        self.title = title
        self.in_main = self._has_main()

    def _has_main(self) -> bool:
        """Returns whether main elements hold at least half of the text that is neither link, frame nor recurring."""
        inside = sum(line.chars - line.link_chars for line in self.lines if line.main)
        rest = (line for line, recurs in zip(self.lines, self.recurring, strict=True) if not (recurs or line.main or line.frame))
        return 0 < inside >= sum(line.chars - line.link_chars for line in rest)

    def kept(self, i: int) -> bool:
        return self.why[i] is None

    def frames(self) -> None:
        for i, line in enumerate(self.lines):
            if line.frame:
                self.why[i] = Removal.FRAME
            elif self.in_main and not line.main:
                self.why[i] = Removal.OUTSIDE_MAIN

    def recurring_lines(self) -> None:
        lines, n = self.lines, len(self.lines)
        recurs = [r and self.why[i] is None and not lines[i].code for i, r in enumerate(self.recurring)]
        if not any(recurs):
            return
        text = [self.why[i] is None and not recurs[i] and not _is_link(line) for i, line in enumerate(lines)]
        always = max(self.limits.min_pages, self.limits.always_frac * self.counts.pages)
        for begin, end in _runs(recurs):
            between = end - begin <= REPRIEVE and begin > 0 and end < n and text[begin - 1] and text[end]
            for i in range(begin, end):
                if not (between or self.in_main) or self.counts.of_lines[i] >= always:
                    self.why[i] = Removal.RECURRING

    def _titled(self, line: Line) -> bool:
        """Returns whether every cell of a line recurs on the host or is the title of one of its pages."""
        found = cells(line.text)
        if not found or line.code:
            return False
        of = zip(found, self.counts.of_cells(found), self.counts.titles(found), strict=True)
        return all(title or on >= (self.least_text if len(cell) >= TEXT_CHARS else self.least) for cell, on, title in of)

    def title_rows(self) -> None:
        lines = self.lines
        headings = (i for i, line in enumerate(lines) if self.kept(i) and line.heading and plain(line.text) == self.title)
        top = next(headings, 0)
        for i in range(top if top < TOP_LINES else 0):
            if self.kept(i) and (normal(lines[i].text) == self.title or self._titled(lines[i])):
                self.why[i] = Removal.TITLE_ROW
        rows = 0
        for i in range(len(lines) - 1, top, -1):
            if self.kept(i):
                if rows == LAST_ROWS or lines[i].heading or not self._titled(lines[i]):
                    break
                self.why[i] = Removal.TITLE_ROW
                rows += 1

    def listings(self) -> None:
        """Removes runs of entries. Lines that were removed before do not end a run."""
        lines, why = self.lines, self.why
        kept = [i for i in range(len(lines)) if why[i] is None]
        text, chars = sum(lines[i].chars - lines[i].link_chars for i in kept), sum(lines[i].chars for i in kept)
        found = []
        for begin, end in _runs([removed is not None or _is_entry(line) for line, removed in zip(lines, why, strict=True)]):
            here = [i for i in range(begin, end) if self.kept(i)]
            if len(here) >= self.limits.listing_lines:
                found.append((here, sum(lines[i].chars for i in here)))
        removed = 0
        for doubt in (DOUBT, 0.0):
            for here, size in found:
                inside = kept[0] < here[0] and here[-1] < kept[-1]
                if self.kept(here[0]) and not (inside and size < doubt * text):
                    removed += size
                    for i in here:
                        self.why[i] = Removal.LISTING
            if chars - removed >= PORTAL * chars:
                break

    def own_contents(self) -> None:
        """Removes two lines or more in a row that only link to the page itself: its own table of contents."""
        pairs = zip(self.lines, self.why, strict=True)
        own = [line.own_chars >= LINK * line.chars and removed is None and not line.heading for line, removed in pairs]
        for begin, end in _runs(own):
            if end - begin >= 2:
                self.why[begin:end] = [Removal.OWN_CONTENTS] * (end - begin)

    def edges(self) -> None:
        for order in (range(len(self.lines)), range(len(self.lines) - 1, -1, -1)):
            for i in order:
                if self.kept(i):
                    line = self.lines[i]
                    link = _is_link(line) and not line.heading and line.external_chars * 2 < line.link_chars
                    if not link and not (order.step < 0 and line.chars < COPYRIGHT_CHARS and COPYRIGHT.search(line.text)):
                        break
                    self.why[i] = Removal.EDGE

    def islands(self) -> None:
        """Removes a few words between three removed lines or an end of the page on both sides, unless the title is among them."""
        lines, n = self.lines, len(self.lines)
        for begin, end in _runs([removed is None for removed in self.why]):
            left = begin == 0 or (begin >= 3 and not any(self.kept(i) for i in range(begin - 3, begin)))
            right = end == n or (n - end >= 3 and not any(self.kept(i) for i in range(end, end + 3)))
            here = lines[begin:end]
            if left and right and not any(line.code or (line.heading and plain(line.text) == self.title) for line in here):
                whole = begin == 0 and end == n  # nothing was removed
                if not whole and sum(len(line.text.split()) for line in here) <= self.limits.island_words:
                    self.why[begin:end] = [Removal.ISLAND] * (end - begin)


def _runs(marks: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each run of true marks."""
    begin = None
    for i, mark in enumerate(marks):
        if mark and begin is None:
            begin = i
        elif not mark and begin is not None:
            yield begin, i
            begin = None
    if begin is not None:
        yield begin, len(marks)


def _is_link(line: Line) -> bool:
    return line.link_chars >= LINK * line.chars


def _is_entry(line: Line) -> bool:
    """Returns whether a line is a link line, or a link within the site with a few words about it."""
    if not line.link_chars or line.heading or line.code:
        return False
    rest = line.chars - line.link_chars
    about = line.external_chars * 2 < line.link_chars and rest <= REST
    return _is_link(line) or (about and (line.link_first or line.link_chars >= HALF * line.chars))
