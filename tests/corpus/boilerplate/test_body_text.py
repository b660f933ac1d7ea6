"""The body as text and as Markdown."""

from __future__ import annotations

from stages.corpus.boilerplate.body_text import body_text
from tests.corpus.visible import visible_columns, visible_lines

PAGE = """<html><body><h1>Title</h1><p>First words.</p><h2>Part</h2>
<ul><li>one</li><li>two<ul><li>inner</li></ul></li></ul><ol><li>first</li><li>second</li></ol>
<dl><dt>term</dt><dd>what it means</dd></dl>
<pre>def f(x):
    if x:

        return "```"
</pre><table><tr><th>A</th><th>B|C</th></tr><tr><td>1</td><td>2</td></tr><tr><td>3</td><td></td></tr></table>
<p># not a heading</p><p>- not an item</p><p>2020 was a year.</p><p>1999. It ended.</p></body></html>"""
MARKDOWN = r"""# Title

First words.

## Part

- one
- two
    - inner
1. first
2. second

term
what it means

````
def f(x):
    if x:

        return "```"
````

| A | B\|C |
| --- | --- |
| 1 | 2 |
| 3 |

\# not a heading

\- not an item

2020 was a year.

1999\. It ended."""


def body(page: str, form: str = "text", without: str = "") -> str:
    text, lines = visible_columns(page, "http://a.example/")
    return body_text(text, lines, [not without or without not in line for line in lines.text], form)  # type: ignore[arg-type]


def test_a_page_as_markdown() -> None:
    assert body(PAGE, "markdown") == MARKDOWN


def test_all_lines_kept_are_the_text_as_extracted() -> None:
    text, lines = visible_lines(PAGE, "http://a.example/")
    assert body(PAGE) == text
    assert "    if x:\n\n        return" in text and "A\t\tB|C" in text
    assert [line for line in text.split("\n") if line] == [line.text for line in lines]


def test_removed_lines_leave_one_empty_line() -> None:
    assert body("<p>a</p><p>b</p><p>c</p>", without="b") == "a\n\nc"
    assert body("<ul><li>a</li><li>b</li><li>c</li></ul>", without="b") == "• a\n\n  • c"
    assert body("<p>a</p><p>b</p>", without="a") == "b" and body("<p>a</p>", without="a") == ""


def test_a_code_block_whose_middle_is_removed_is_closed() -> None:
    assert body("<pre>one\ntwo\nthree</pre><p>x</p>", "markdown", without="two").count("```") == 2
    assert body("<pre>one\ntwo</pre>", "markdown", without="o") == ""
