"""Finds a page's whole body from one resiliparse pass with marks in the source, and from what the crawl knows of its host.

This is a prototype for measurements: no stage uses it yet. bench_boilerplate.py compares it with the engines of extract.

Pass 1, per page: one regular expression puts noncharacters (U+FDD0...) around <a> and <h1-6> in the source; resiliparse parses; at most
MAX_FRAMES elements nav, header, footer, aside, main (and ARIA roles) get marks as text nodes; one extraction of all visible text. The marks tell
per line the share of characters in links, the level of a heading, and whether it is in a frame element or in main.
Between the passes, per host: on how many pages each normalised line and cell occurs, and the titles of the pages.
Pass 2, per page: the rules of `keep`, each linear in the lines of the page.
Cost: about twice that of resiliparse's main content rule, measured once by hand; bench_boilerplate.py measures no time.

Traps of resiliparse 2.0: each item of an element list runs the query again (5 ms per item on a page of 2,000 links), so lists are only for
few elements; the links are marked in the source instead.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

# marks: noncharacters that no text may interchange (Unicode 23.7); any in the source are removed first
A_OUT, A_OWN, A_EXT, A_END, H_END, FRAME, FRAME_END, MAIN, MAIN_END = (chr(0xFDD0 + i) for i in range(9))
H_LEVEL = "".join(chr(0xFDDA + i) for i in range(6))  # h1..h6: U+FDDA..U+FDDF
MARK = re.compile("[\ufdd0-\ufddf]")
ANY = re.compile("([\ufdd0-\ufddf])")
TAG = re.compile(r"<(/?)(a|h[1-6])(?=[\s>])([^>]*)>", re.I)
FILE = re.compile(r"\.(?:pdf|ps|gz|zip|bib|txt|jpe?g|png|gif|mp[34]|tgz|deb|xml|pptx?|docx?)$", re.I)
HREF = re.compile(r"""href\s*=\s*["']?\s*([^"'\s>]*)""", re.I)
FRAMES = "nav, footer, aside, header, [role=navigation], [role=search], [role=contentinfo], [role=complementary], [role=banner]"
MAX_FRAMES = 40  # resiliparse runs a query again for each item of its list: n items cost n queries


class Line(NamedTuple):
    text: str
    key: str  # normalised
    chars: int  # characters that are neither blank nor punctuation
    link: int  # of them in links
    own: int  # of them in links to this page itself
    ext: int  # of them in links to other sites and files
    links: int  # number of links on the line
    heading: int  # level, 0: none
    frame: bool
    main: bool
    first: bool  # begins with a link


def marked_text(html: str, url: str) -> str:
    """The visible text with marks."""
    if MARK.search(html):
        html = MARK.sub("", html)
    name = url.rsplit("/", 1)[-1].split("#")[0]

    site = urlsplit(url).netloc

    def outside(to: str) -> bool:
        """A link to another site or to a file that is no page: a reference, not a way through this site."""
        if FILE.search(to):
            return True
        return "//" in to[:8] and (to + "///").split("/", 3)[2] != site or to[:7] in ("mailto:", "javascr")

    def mark(m: re.Match[str]) -> str:
        close, tag = m[1], m[2].lower()
        if tag == "a":
            if close:
                return A_END + m[0]
            h = HREF.search(m[3])
            if not h:
                return m[0]
            to, hash_, _ = h[1].partition("#")
            if hash_ and to in ("", name, "./" + name):
                return m[0] + A_OWN
            return m[0] + (A_EXT if outside(to) else A_OUT)
        return H_END + m[0] if close else m[0] + H_LEVEL[int(tag[1]) - 1]

    tree = HTMLTree.parse(TAG.sub(mark, html))
    for selector, first, last in ((FRAMES, FRAME, FRAME_END), ("main, [role=main]", MAIN, MAIN_END)):
        found = tree.document.query_selector_all(selector)
        if len(found) <= MAX_FRAMES:
            for e in found:
                if e.first_child is None or (e.tag in ("header", "footer") and within_article(e)):
                    continue
                e.insert_before(tree.create_text_node(first), e.first_child)
                e.append_child(tree.create_text_node(last))
    return extract_plain_text(tree, main_content=False, preserve_formatting=True, alt_texts=False)


def within_article(e: object) -> bool:
    """HTML standard: header and footer are of the page only if their sectioning ancestor is body. Here: no article, main or section above."""
    while (e := e.parent) is not None:
        if e.tag in ("article", "main", "section"):
            return True
    return False


DIGITS = re.compile(r"\d+")
BULLET = re.compile(r"^(?:•|\d+\.)\s+")


def normal(text: str) -> str:
    return DIGITS.sub("0", " ".join(BULLET.sub("", text).split()).casefold())


def size(text: str) -> int:
    return len(text) - text.count(" ") - text.count("|") - text.count("\t") - text.count("•")


def lines(marked: str) -> list[Line]:
    found = []
    link = own = ext = False
    heading = frame = main = 0
    for raw in marked.split("\n"):
        if not ANY.search(raw):
            text = raw.strip()
            n = size(text)
            if n:
                found.append(
                    Line(
                        text,
                        normal(text),
                        n,
                        n if link else 0,
                        n if link and own else 0,
                        n if link and ext else 0,
                        int(link),
                        heading,
                        frame > 0,
                        main > 0,
                        link,
                    )
                )
            continue
        parts = ANY.split(raw)
        level, fr, total, inlink, inown, inext, links, ma = heading, 0, 0, 0, 0, 0, int(link), main
        begins = None
        for i, p in enumerate(parts):
            if i % 2:
                if p in (A_OUT, A_OWN, A_EXT):
                    link, own, ext = True, p == A_OWN, p == A_EXT
                    links += 1
                elif p == A_END:
                    link = False
                elif p == H_END:
                    heading = 0
                elif p == FRAME:
                    frame += 1
                elif p == FRAME_END:
                    frame = max(0, frame - 1)
                elif p == MAIN:
                    main += 1
                    ma = 1
                elif p == MAIN_END:
                    main = max(0, main - 1)
                else:
                    heading = level = H_LEVEL.index(p) + 1
            elif n := size(p.strip()):
                total += n
                if begins is None:
                    begins = link
                fr += n if frame else 0
                if link:
                    inlink += n
                    inown += n if own else 0
                    inext += n if ext else 0
        text = "".join(parts[::2]).strip()
        if total:
            found.append(
                Line(
                    text,
                    normal(text),
                    total,
                    inlink,
                    inown,
                    inext,
                    links,
                    level,
                    2 * fr > total or frame > 0 and not total,
                    ma > 0,
                    bool(begins),
                )
            )
    return found


class Host(NamedTuple):
    """What the crawl knows of a host."""

    pages: int
    df: dict[str, int]  # pages per normalised line, and per cell of a line with cells
    titles: dict[str, int]  # pages per title: their first heading of the highest level


# Thresholds, tuned on the hosts of the tune half only
REC_PAGES, REC_SHARE = 4, 0.04  # a line on so many pages, and so large a share of the pages, of its host is recurring
ALWAYS = 0.5  # a recurring line on so many of the pages is never reprieved
REPRIEVE = 3  # at most so many recurring lines in a row stay between lines of text (API headings, "Note", "}")
LINK = 0.8  # share of the characters in links from which a line is a link line
REST, HALF = 120, 0.5  # an entry of a listing: link first or half of it, and at most so many characters beside its links
RUN = 8  # so many link lines and entries in a row are a listing
DOUBT = 0.15  # a listing between kept lines that is shorter than this share of the page's text stays: doubtful, and cheap
PORTAL = 0.5  # a page of which listings take more than this share is a portal: no listing is doubtful
ISLAND = 12  # words that remain between two dropped runs (3 lines or an end of the page) and go with them
EDGE = 12, 4  # the title rows before the title (within so many lines), and after the text (so many lines)

CELL = re.compile(r"\t+|\s\|\s|\s{2,}|»|→")
COPYRIGHT = re.compile(r"^(?:•\s*)?(?:©|\(c\)\s|copyright\b|all rights reserved)", re.I)


def cells(text: str) -> list[str]:
    """The keys of the cells of a line: of a table row, a breadcrumb, a bar of links."""
    return [k for c in CELL.split(text) if (k := normal(c.strip(" |[]")))]


def plain(key: str) -> str:
    """A key without the link to itself that manuals add to headings."""
    return key.rstrip("¶ ")


def title_key(found: list[Line]) -> str:
    """The page's title: its first heading of the highest level that it has, outside frame elements."""
    best = min((l.heading for l in found if l.heading and not l.frame), default=0)
    return next((plain(l.key) for l in found if best and l.heading == best and not l.frame), "")


def keys(found: list[Line]) -> set[str]:
    """What a page adds 1 to in its host's table."""
    result = {l.key for l in found}
    for l in found:
        if "\t" in l.text or " | " in l.text or "»" in l.text:
            result.update(cells(l.text))
    return result


def keep(ls: list[Line], host: Host, off: Collection[str] = ()) -> list[bool]:
    """Which lines are body. `off`: rules left out, for the ablation."""
    kept = [True] * len(ls)
    least = max(REC_PAGES, REC_SHARE * host.pages)
    recurring = [host.df.get(l.key, 0) >= least for l in ls]
    title = title_key(ls)
    in_main = "main" not in off and has_main(ls, recurring)
    for i, l in enumerate(ls):
        if (l.frame and "frame" not in off) or (in_main and not l.main):
            kept[i] = False
    if "recur" not in off:
        drop_recurring(ls, kept, recurring, host, in_main, "reprieve" not in off)
    if "titles" not in off:
        drop_title_rows(ls, kept, title, least, host)
    if "listing" not in off:
        drop_listings(ls, kept, "portal" not in off)
        drop_contents(ls, kept)
    if "edges" not in off:
        drop_edges(ls, kept)
    if "islands" not in off:
        drop_islands(ls, kept, title)
    return kept


def runs(marks: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of true marks."""
    begin = None
    for i, mark in enumerate(marks):
        if mark and begin is None:
            begin = i
        elif not mark and begin is not None:
            yield begin, i
            begin = None
    if begin is not None:
        yield begin, len(marks)


def has_main(ls: list[Line], recurring: list[bool]) -> bool:
    """Whether an element main holds at least half of the text that is neither link, frame nor recurring."""
    inside = sum(l.chars - l.link for l in ls if l.main)
    outside = sum(l.chars - l.link for l, r in zip(ls, recurring, strict=True) if not l.main and not l.frame and not r)
    return inside > 0 and inside >= outside


def drop_recurring(ls: list[Line], kept: list[bool], recurring: list[bool], host: Host, in_main: bool, reprieve: bool) -> None:
    """Lines that recur on the host, except in main and except short runs between lines of text."""
    text = [k and not r and l.link < LINK * l.chars for l, k, r in zip(ls, kept, recurring, strict=True)]
    always = max(REC_PAGES, ALWAYS * host.pages)
    for begin, end in list(runs([k and r for k, r in zip(kept, recurring, strict=True)])):
        between = end - begin <= REPRIEVE and begin > 0 and end < len(ls) and text[begin - 1] and text[end]
        for i in range(begin, end):
            kept[i] = reprieve and (between or in_main) and host.df[ls[i].key] < always


def drop_title_rows(ls: list[Line], kept: list[bool], title: str, least: float, host: Host) -> None:
    """Rows at the edges whose every cell recurs or is the title of a page: previous, up, next; the title itself above its heading."""

    def titled(l: Line) -> bool:
        found = cells(l.text)
        return bool(found) and all(c in host.titles or host.df.get(c, 0) >= least for c in found)

    top = next((i for i, l in enumerate(ls) if kept[i] and l.heading and plain(l.key) == title), 0)
    if top < EDGE[0]:
        for i in range(top):
            if kept[i] and (ls[i].key == title or titled(ls[i])):
                kept[i] = False
    dropped = 0
    for i in range(len(ls) - 1, top, -1):
        if dropped == EDGE[1]:
            break
        if kept[i]:
            if ls[i].heading or not titled(ls[i]):
                break
            kept[i] = False
            dropped += 1


def is_entry(l: Line) -> bool:
    """A link line, or a link within the site with a few words about it."""
    if not l.link or l.heading:
        return False
    return l.link >= LINK * l.chars or (l.ext * 2 < l.link and l.chars - l.link <= REST and (l.first or l.link >= HALF * l.chars))


def drop_listings(ls: list[Line], kept: list[bool], portals: bool) -> None:
    """Runs of entries; lines that were dropped before do not end a run."""
    entries = [is_entry(l) for l in ls]
    text = sum(l.chars - l.link for l, k in zip(ls, kept, strict=True) if k)
    size_ = sum(l.chars for l, k in zip(ls, kept, strict=True) if k)
    found = []
    for begin, end in runs([e or not k for e, k in zip(entries, kept, strict=True)]):
        here = [i for i in range(begin, end) if kept[i]]
        if len(here) >= RUN:
            found.append((here, sum(ls[i].chars for i in here)))
    first, last = (next((i for i in order if kept[i]), 0) for order in (range(len(ls)), range(len(ls) - 1, -1, -1)))
    dropped = 0
    for doubt in (DOUBT, 0.0) if portals else (DOUBT,):
        for here, chars in found:
            inside = first < here[0] and here[-1] < last
            if kept[here[0]] and not (inside and chars < doubt * text):
                dropped += chars
                for i in here:
                    kept[i] = False
        if size_ - dropped >= PORTAL * size_:
            break


def drop_contents(ls: list[Line], kept: list[bool]) -> None:
    """Two lines or more in a row that only link to the page itself: its own table of contents."""
    for begin, end in list(runs([k and l.own >= LINK * l.chars and not l.heading for l, k in zip(ls, kept, strict=True)])):
        if end - begin >= 2:
            kept[begin:end] = [False] * (end - begin)


def drop_edges(ls: list[Line], kept: list[bool]) -> None:
    """Link lines (not to other sites) before the first and after the last other line; copyright lines at the end."""
    for order in (range(len(ls)), range(len(ls) - 1, -1, -1)):
        for i in order:
            if kept[i]:
                l = ls[i]
                link = l.link >= LINK * l.chars and not l.heading and l.ext * 2 < l.link
                if not link and not (order.step < 0 and l.chars < 200 and COPYRIGHT.search(l.text)):
                    break
                kept[i] = False


def drop_islands(ls: list[Line], kept: list[bool], title: str) -> None:
    """A few words between two dropped runs, unless the title is among them."""
    n = len(ls)
    for begin, end in list(runs(kept)):
        left = begin == 0 or (begin >= 3 and not any(kept[begin - 3 : begin]))
        right = end == n or (n - end >= 3 and not any(kept[end : end + 3]))
        if (
            left
            and right
            and sum(len(l.text.split()) for l in ls[begin:end]) <= ISLAND
            and not any(l.heading and plain(l.key) == title for l in ls[begin:end])
        ):
            kept[begin:end] = [False] * (end - begin)


def body(html: str, url: str, host: Host) -> str:
    """The whole of the second pass for one page, as production would call it."""
    found = lines(marked_text(html, url))
    return "\n".join(l.text for l, k in zip(found, keep(found, host), strict=True) if k)


def host_tables(pages: dict[str, list[Line]]) -> dict[str, Host]:
    """Counts per host. In production: 64-bit hashes in a table per host, made by the shard of the host."""
    df, titles, count = defaultdict(Counter), defaultdict(Counter), Counter()
    for url, found in pages.items():
        site = urlsplit(url).netloc
        count[site] += 1
        df[site].update(keys(found))
        if title := title_key(found):
            titles[site][title] += 1
    return {site: Host(n, df[site], titles[site]) for site, n in count.items()}


RULES = ("frame", "main", "recur", "reprieve", "titles", "listing", "edges", "islands", "portal")
