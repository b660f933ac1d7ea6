"""Docstring markup as HTML: well formed, no word lost, code kept as code."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.text.doc_markup import docstring_html, plain_text
from stages.corpus.text.docstrings import read_docstrings


class Checker(HTMLParser):
    """Collects text and notes tags that do not nest."""

    def __init__(self) -> None:
        """Starts without text and without faults."""
        super().__init__()
        self.open: list[str] = []
        self.faults = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Notes the tag as open."""
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Counts a fault if the tag is not the one that was opened last."""
        self.faults += not self.open or self.open.pop() != tag

    def handle_data(self, data: str) -> None:
        """Collects the text."""
        self.text += data


def read(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    checker.faults += len(checker.open)
    return checker


@pytest.mark.parametrize(
    ("markup", "plain"),
    [
        ("Use :func:`~os.path.join` or :py:class:`Text <a.b.Text>`.", "Use join or Text."),
        ("``a * b`` and *this* and **that** and `other`", "a * b and this and that and other"),
        ("See `the docs <http://a.b/c>`_ [1]_ or http://x.y/z.", "See the docs or http://x.y/z."),
        ("x*y*z and 2**3 and snake_case_ stay", "x*y*z and 2**3 and snake_case_ stay"),
        ("a ``literal\n over lines`` ends", "a literal over lines ends"),
    ],
)
def test_inline_markup(markup: str, plain: str) -> None:
    assert plain_text(markup) == plain


def test_blocks() -> None:
    html = docstring_html(
        "Does it.\n\nExample::\n\n    if a < b:\n        go()\n\n>>> f(1)\n2\n\nParameters\n----------\nx : int\n    The x.\ny : str, optional\n"
        "    The y,\n    longer.\n\nNotes\n-----\n- one\n- two\n  more\n\n.. versionadded:: 1.2\n\n.. code-block:: python\n\n   x = 1\n"
    )
    assert "<p>Does it.</p>" in html
    assert "<p>Example:</p>\n<pre>if a &lt; b:\n    go()</pre>" in html
    assert "<pre>&gt;&gt;&gt; f(1)\n2</pre>" in html
    assert "<h3>Parameters</h3>" in html
    assert "<dt>x : int</dt>\n<dd><p>The x.</p></dd>" in html
    assert "<dd><p>The y, longer.</p></dd>" in html
    assert "<li><p>two more</p></li>" in html
    assert "Added in version 1.2." in html
    assert "<pre>x = 1</pre>" in html


def test_google_sections_and_field_lists() -> None:
    html = docstring_html("Go.\n\nArgs:\n    x: the x\n    y (int): the y,\n        longer\n\nReturns:\n    A thing.")
    assert "<h3>Args</h3>" in html
    assert "the y, longer" in html.replace("</dt>\n<dd><p>", " ").replace("\n", " ")
    html = docstring_html(":param x: the x\n:type x: int\n:returns: nothing\n:raises ValueError: when\n    wrong")
    assert "<dt>x</dt>\n<dd><p>the x</p></dd>" in html
    assert "<dt>Raises <code>ValueError</code></dt>\n<dd><p>when wrong</p></dd>" in html


def test_real_docstrings_are_well_formed_and_keep_their_words() -> None:
    kept = total = 0
    for doc in read_docstrings(["datatrove", "datasketch"]):
        checker = read(docstring_html(doc.text))
        assert not checker.faults, doc.name
        shown = set(checker.text.split())
        words = [w for w in plain_text(doc.text).split() if w.isalpha()]
        total += len(words)
        kept += sum(1 for word in words if word in shown)
    assert kept / total > 0.99  # directives such as autosummary, and section marks, are left out on purpose


LINE = st.sampled_from(
    ["", "  ", "text here", "    indented", "----", "====", ">>> x", "- item", "x : int", ":param a: b", ".. note:: hi", ".. math::", "Args:",
     "ends::", "`", "``", "**", "<b>", "&", "| table", "+---+", "1. one", ".. [1] ref", "*", ":a:`b"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(LINE, max_size=12))
def test_any_lines_give_well_formed_html(lines: list[str]) -> None:
    assert not read(docstring_html("\n".join(lines))).faults
