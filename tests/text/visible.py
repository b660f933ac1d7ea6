"""The visible lines of a page, for tests and benchmarks."""

from __future__ import annotations

from stages.text.body.line import Line, lines_of
from stages.text.warc.visible_text import visible_text


def visible_lines(html: str, url: str) -> tuple[str, list[Line]]:
    """Returns the visible text and its lines that are not empty."""
    text, marks = visible_text(html, url)
    return text, lines_of(text, {name: values.tolist() for name, values in marks.items()})
