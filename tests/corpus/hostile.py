"""Pages made to cost a parser much, by construct and size; as a program it measures one.

`python -m tests.corpus.hostile NAME ENGINE SIZE` prints the processor seconds and the memory (MB) that the page took, its length, and what
became of it. SIZE 0 is the largest that is let through.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stages.corpus.extract.html import ParserError, TooCostlyError, extract_text, parse
from stages.corpus.extract.visible_text import visible_text

MAX_CHARS = 10_000_000  # extract.max_page_bytes


def _each(template: str) -> Callable[[int], str]:
    return lambda n: "".join([template.replace("@", str(i)) for i in range(n)])


def _then(before: str, after: str, share: int = 6) -> Callable[[int], str]:
    """Returns `before` n / share times, then `after` n times."""
    return lambda n: _each(before)(n // share) + after * n


CONSTRUCTS: dict[str, Callable[[int], str]] = {
    "paragraphs": lambda n: "<p>x" * n,
    "closed paragraphs": lambda n: "<p>Some words of a sentence, and more.</p>" * n,
    "breaks": lambda n: "<br>" * n,
    "comments": lambda n: "<!---->" * n,
    "open comments": lambda n: "<!--" * n,
    "comment of dashes": lambda n: "<!--" + "-" * n,
    "declarations": lambda n: "<![CDATA[" * n,
    "entities": lambda n: "<p>" + "&amp;&lt;&notin;" * n,
    "broken entities": lambda n: "<p>" + "&#x;&CounterClockwiseContourIntegra" * n,
    "words": lambda n: "<p>" + "word " * n,
    "one word": lambda n: "<p>" + "a" * n,
    "spaces": lambda n: "<p>a" + " " * n + "b",
    "wide characters": lambda n: "<p>" + "\U0001f600 word" * n,
    "zeros": lambda n: "<p>" + "\0" * n,
    "angle brackets": lambda n: "<" * n,
    "lines": lambda n: "<pre>" + "x\n" * n,
    "divisions": lambda n: "<div>" * n + "x",
    "spans": lambda n: "<span>" * n + "x",
    "nests": lambda n: ("<div>" * 900 + "x" + "</div>" * 900) * (n // 900),
    "nests of 90": lambda n: ("<div>" * 90 + "x" + "</div>" * 90) * (n // 90),
    "paragraphs, deep": lambda n: "<div>" * 1000 + "<p>x" * n,
    "paragraphs, 100 deep": lambda n: "<div>" * 100 + "<p>x" * n,
    "spans, deep": lambda n: "<div>" * 1000 + "<span>x</span>" * n,
    "breaks, deep": lambda n: "<div>" * 1000 + "x<br>" * n,
    "attributes": lambda n: "<p " + _each("a@=1 ")(n) + ">x",
    "attributes of tags": lambda n: ("<p " + _each("a@=1 ")(900) + ">x") * (n // 900),
    "short attributes": lambda n: "<p a b c d e f g h i j>x" * (n // 10),
    "attributes of body": lambda n: _each("<body a@=1>")(n),
    "names of attributes": _each("<p a@=1>x"),
    "names of elements": _each("<x@>x</x@>"),
    "classes": lambda n: "<div class='" + "a " * n + "'>x",
    "long classes": lambda n: ("<div class='" + "nav-" * 200 + "'>x</div>") * n,
    "formatting reopened": lambda n: "<p>" + _each("<b id=@>")(n // 6) + "<p>x" * n,
    "few formatting reopened": lambda n: "<p>" + _each("<b id=@>")(50) + "<p>x" * n,
    "same formatting": lambda n: "<p>" + "<b>" * n + "<p>x" * n,
    "fonts": lambda n: "<font size=1><p>" * n,
    "fonts of each kind": _each("<font size=@><p>"),
    "adoption": lambda n: "<b><p>" * n + "</b>" * n,
    "links nested": lambda n: "<a href=x><div>" * n,
    "links misnested": lambda n: "<a href=x><div>x</a></div>" * n,
    "links": lambda n: "<a href=x>x</a>" * n,
    "formatting around a table": _then("<b id=@>", "<table></b></table><p>x"),
    "end tags that close nothing": _then("<span>", "</x>", 2),
    "tables": lambda n: "<table>" * n,
    "tables in cells": lambda n: "<table><tr><td>x" * n,
    "rows": lambda n: "<table>" + "<tr><td>x</td></tr>" * n,
    "foster children": lambda n: "<table>" + "<b>x" * n,
    "options": lambda n: "<select>" + "<option>x" * n,
    "selections": lambda n: "<select><option>x" * n,
    "selected content": lambda n: "<select><button><selectedcontent></selectedcontent></button>" + "<option selected>x<b>y</b></option>" * n,
    "large selected content": lambda n: "<select><button><selectedcontent></selectedcontent></button><option selected>" + "<b>x</b>" * n
    + "</option><option>y</option>" * n,
    "templates": lambda n: "<template>" * n,
    "drawings": lambda n: "<svg>" + "<g>" * n,
    "drawings left": lambda n: "<svg><desc><p>x" * n,
    "formulas": lambda n: "<math><mi><p>x" * n,
    "lists": lambda n: "<ul><li>x" * n,
    "items": lambda n: "<ul>" + "<li><a href=x>x</a></li>" * n,
    "items and definitions": lambda n: "<li><dd>" * n,
    "rubies": lambda n: "<ruby>" + "<rt>x" * n,
    "objects": lambda n: "<object><b>x" * n,
    "forms": lambda n: "<form><input>" * n,
    "frames": lambda n: "<frameset>" * n,
    "scripts": lambda n: "<script><!--<script>" * n,
    "titles": lambda n: "<title>" + "<b>" * n,
    "plain text": lambda n: "<plaintext>" + "<b>" * n,
    "quotes": lambda n: "<blockquote>x" * n,
    "headings": lambda n: "<h1>x" * n,
}  # fmt: skip


def page(name: str, n: int) -> str:
    """Returns the page of a construct, of size n."""
    return "<html><body>" + CONSTRUCTS[name](n)


def largest(name: str, limit_chars: int = MAX_CHARS) -> int:
    """Returns the largest n, to a sixteenth, whose page is not refused, nor too long."""

    def passes(n: int) -> bool:
        made = page(name, n)
        if len(made.encode()) > limit_chars:
            return False
        try:
            parse(made)
        except TooCostlyError:
            return False
        return True

    low = 90
    while passes(2 * low):
        low *= 2
    step = low // 2
    while step >= low // 16:
        low += step if passes(low + step) else 0
        step //= 2
    return low


def _peak_kib() -> int:
    """Returns the most memory that this program has held; ru_maxrss would count what ran in its process before it."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1])


def main(name: str, engine: str, n: int) -> None:
    if not n:
        n = largest(name)
        os.execv(sys.executable, [sys.executable, "-m", "tests.corpus.hostile", name, engine, str(n)])  # the search has used memory
    made = page(name, n)

    def text_of(html: str) -> str:
        return visible_text(html, "http://a.b/c")[0] if engine == "visible" else extract_text(html, engine)  # type: ignore[arg-type]

    text_of("<p>A page before.")
    before, began = _peak_kib(), time.process_time()
    try:
        became = f"{len(text_of(made))} characters"
    except TooCostlyError as error:
        became = error.reason
    except ParserError as error:
        became = f"FAILED {error}"
    seconds, grown = time.process_time() - began, (_peak_kib() - before) / 1024
    print(f"{seconds:.2f} {grown:.0f} {len(made)} {became}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
