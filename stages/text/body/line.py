"""Declares a visible line of a page, with what the page's HTML says of it.

Guarantee: the lists of a page's lines have one value for each line of its text that is not empty, in order.
Cost: a tuple per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Line(NamedTuple):
    """A line of a page's visible text that is not empty.

    Attributes:
        text: The line as printed, with its indentation, list sign and cells.
        chars: Characters that are neither blank nor list or cell signs.
        link_chars: Of them in links.
        own_chars: Of them in links to this page itself.
        external_chars: Of them in links to other sites and to files that are no pages.
        heading: Level of the heading that the line is in, 1 to 6; 0 for none.
        frame: Whether most of it is in an element that frames pages: nav, header, footer, aside, or one with such an ARIA role.
        main: Whether it is in an element main, or one with this role.
        link_first: Whether it begins with a link.
        code: Whether it is after <pre> and before </pre> in the source.
    """

    text: str
    chars: int
    link_chars: int = 0
    own_chars: int = 0
    external_chars: int = 0
    heading: int = 0
    frame: bool = False
    main: bool = False
    link_first: bool = False
    code: bool = False


MARKS = Line._fields[1:]
"""The fields beside the text; each is a list column of the table `lines`."""
Marks = dict[str, Any]
"""The marks of a page's lines: name of a field -> one value per line of the text that is not empty (a list or an array)."""


def lines_of(text: str, marks: Mapping[str, Sequence[Any]]) -> list[Line]:
    """Returns the lines of a text with their marks.

    Args:
        text: The text that extract wrote.
        marks: Name of a field -> one value per line of the text that is not empty.

    Marks of another text are a ValueError.
    """
    found = [line for line in text.split("\n") if line]
    return list(map(Line._make, zip(found, *(marks[name] for name in MARKS), strict=True)))
