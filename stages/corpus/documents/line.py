"""Declares the visible lines of a page, with what the page's HTML says of each.

Guarantee: each line of the text that is not empty has one value of each mark, in order.
Cost: the arrays of marks are those that were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Lines:
    """The lines of a page's visible text that are not empty, as columns: numbers are int32 [lines], the others bool [lines].

    Attributes:
        text: The lines as printed, with indentation, list sign and cells.
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

    text: list[str]
    chars: np.ndarray
    link_chars: np.ndarray
    own_chars: np.ndarray
    external_chars: np.ndarray
    heading: np.ndarray
    frame: np.ndarray
    main: np.ndarray
    link_first: np.ndarray
    code: np.ndarray


MARKS = tuple(field.name for field in fields(Lines))[1:]
"""The fields beside the text; each is a list column of the table `lines`."""
YES = ("frame", "main", "link_first", "code")
"""The marks that are yes or no."""
Marks = dict[str, Any]
"""The marks of a page's lines: name of a field -> one value per line of the text that is not empty (a list or an array)."""


def lines_of(text: str, marks: Mapping[str, Sequence[Any] | np.ndarray]) -> Lines:
    """Returns the lines of a text with their marks.

    Args:
        text: The text that extract wrote.
        marks: Name of a field -> one value per line of the text that is not empty.

    Raises:
        ValueError: The marks are those of another text.
    """
    import numpy as np

    found = [line for line in text.split("\n") if line]
    columns: dict[str, np.ndarray] = {name: np.asarray(marks[name], np.bool_ if name in YES else np.int32) for name in MARKS}
    for name, column in columns.items():
        if len(column) != len(found):
            raise ValueError(f"{len(found)} lines, and {len(column)} marks {name}")
    return Lines(found, **columns)
