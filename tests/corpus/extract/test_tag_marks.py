"""Marks beside tags: the compiled loop gives what a regular expression over tags and one over addresses give."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.extract import line_marks
from stages.corpus.extract.tag_marks import FILES, HAS_FRAME, HAS_MAIN, HAS_ROLE, marked_tags

URL = "http://site.example/guide/page.html?a=1&b=2#part"
TAG = re.compile(r"<(/?)([aA]|[hH][1-6]|[pP][rR][eE])(?=[ \t\n\r\f\v>])([^<>]*)>")
HREF = re.compile(r"""(?<![-\w])href[ \t\n\r\f\v]*=[ \t\n\r\f\v]*["']?[ \t\n\r\f\v]*([^"' \t\n\r\f\v>]*)""", re.I)
FILE = re.compile(rf"\.(?:{FILES.replace(' ', '|')})$", re.I)
PIECES = st.sampled_from([
    "<a ", "<A\n", "<a>", "</a>", "</A >", "<h1>", "<H6 x>", "</h1>", "<h7>", "<pre>", "</pre>", "<PRE a=b>", "<abbr>", "<p>", "<", ">", "/", " ",
    "href=", "href = '", 'HREF="', "data-href=", "éhref=", "href ", "'", '"', "x>", "text ", "#part", "#", "page.html?a=1&amp;b=2", "page.html?a=1&b=2",
    "./", "other", "//", "site.example", "http:", "mailto:", "javascript:", ".pdf", ".PDF", ".pd", "é", "&amp;", "1", "<nav>", "role", "=", "a/b/c",
    "&#", "&#47;", "&#x2F;", "&#35", "&#x3A;", "&#109;", "47", ";", "x2f", "0", "&#0;", "&#128;", "&#x0;",
])  # fmt: skip


def kind(link: str) -> int:
    number = re.compile(r"&#(?:0*([1-9]|[1-9]\d|1[01]\d|12[0-7])(?!\d)|[xX]0*([1-7][0-9a-fA-F]|[1-9a-fA-F])(?![0-9a-fA-F]));?|&amp;")
    read = number.sub(lambda one: "&" if one[0] == "&amp;" else chr(int(one[1]) if one[1] else int(one[2], 16)), link)
    to, hash_, _ = read.partition("#")
    if hash_ and to.removeprefix("./") in ("", "page.html?a=1&b=2") and to != "./":
        return line_marks.OWN
    elsewhere = b"//" in to.encode()[:8] and (to + "///").split("/", 3)[2] != "site.example"
    return line_marks.EXTERNAL if elsewhere or to[:7].lower() in ("mailto:", "javascr") or FILE.search(to) else line_marks.INNER


def expected(page: str) -> str:
    is_open = dict.fromkeys("ahp", False)

    def marked(tag: re.Match[str]) -> str:
        whole, closing, name, rest = tag[0], tag[1], tag[2].lower(), tag[3]
        if closing:
            was_open, is_open[name[0]] = is_open[name[0]], False
            end = {"a": line_marks.LINK_END, "h": line_marks.HEADING_END, "p": line_marks.CODE_END}[name[0]]
            return line_marks.mark(end) + whole if was_open else whole
        link = HREF.search(rest)
        if name == "a" and not link:
            return whole
        is_open[name[0]] = True
        if name == "a" and link:
            return whole + line_marks.mark(kind(link[1]))
        return whole + (line_marks.mark(line_marks.CODE) if name == "pre" else line_marks.level(int(name[1])))

    return TAG.sub(marked, page)


@settings(deadline=None)  # the first call compiles
@given(st.lists(PIECES, max_size=25).map("".join) | st.text(alphabet="<>a/hrefpH1 ='\"#.é"))
def test_marks_are_those_of_a_regular_expression(page: str) -> None:
    assert marked_tags(page.encode(), URL)[0].decode() == expected(page)


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("#x", "OWN"), ("page.html?a=1&amp;b=2#x", "OWN"), ("./page.html?a=1&b=2#", "OWN"), ("page.html#x", "INNER"), ("./#x", "INNER"),
        ("/guide/", "INNER"), ("http://site.example/x", "INNER"), ("//site.example", "INNER"), ("http://site.example.org/", "EXTERNAL"),
        ("//other/x", "EXTERNAL"), ("MailTo:me", "EXTERNAL"), ("javascript:x", "EXTERNAL"), ("a.PDF", "EXTERNAL"), ("a.pdf#p2", "EXTERNAL"),
        ("a.pdfx", "INNER"), ("", "INNER"), ("?q=a&#35;b", "INNER"), ("&#109;ailto:x@y", "EXTERNAL"),
        ("https:&#x2F;&#x2F;other.org&#x2F;", "EXTERNAL"), ("&#x2F;docs&#47;p", "INNER"), ("&#35;p", "OWN"), ("http&#58;//site.example/", "INNER"),
        ("x//other", "EXTERNAL"), ("/a/b/c//x", "EXTERNAL"), ("longer/path//other", "INNER"),
    ],
)  # fmt: skip
def test_where_a_link_leads(link: str, place: str) -> None:
    marked = marked_tags(f'<a class=x href="{link}">'.encode(), URL)[0].decode()
    assert marked == f'<a class=x href="{link}">' + line_marks.mark(getattr(line_marks, place))


@pytest.mark.parametrize(
    ("page", "signs"),
    [
        ("<nav>", HAS_FRAME), ("<FOOTER x>", HAS_FRAME), ("<aside", HAS_FRAME), ("<header>", HAS_FRAME), ("<head><p>nav</p></nav>", 0), ("<main>", HAS_MAIN),
        ("<div ROLE = main>", HAS_ROLE), ("<a href=x role\n=\nnavigation>", HAS_ROLE), ("<p>the role of</p>", 0), ("=role", 0), ("", 0),
    ],
)  # fmt: skip
def test_what_must_be_searched_for_is_told(page: str, signs: int) -> None:
    assert marked_tags(page.encode(), URL)[1] == signs


def test_an_address_that_cannot_be_parsed_has_no_site() -> None:
    assert marked_tags(b"<a href='http://x/'>", "http://[bad")[0].decode()[-1] == line_marks.mark(line_marks.EXTERNAL)
