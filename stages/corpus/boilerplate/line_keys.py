"""Names the lines and cells of pages by 64-bit keys, under which the pages of a host are compared.

Guarantee: a key depends on the host and on the words of a line alone: not on its numbers, case, list sign, spaces or place.
Cost: 1 µs per line. With 10^9 different lines, two of them share a key with a probability of 3 %, and then count as one.
Source: xxHash (XXH3, 64 bits).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import numpy as np

KEYS_VERSION = 1
"""Counts of another version cannot be added up with those of this one."""
CELL = re.compile(r"[\t\n]+|\s\|\s|\s{2,}|»|→")


def host_of(url: str) -> str:
    """Returns the host of a URL with its port, in lower case; "" without one."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


def normals(text: str) -> list[bytes]:
    r"""Returns of each line of a text that is not empty its words, in UTF-8.

    They are in lower case, without list sign, and with every number of Western digits as 0.

    >>> normals("  • Page 12  of 30\n\n7. See")
    [b'page 0 of 0', b'see']
    """
    from stages.corpus.boilerplate.normal_lines import joined_normals

    joined, lines = joined_normals(text)
    return joined.split(b"\n")[:lines]


def normal(text: str) -> str:
    """Returns the words of one line, as `normals`."""
    return next(iter(normals(text)), b"").decode("utf-8", "surrogatepass")


def plain(text: str) -> str:
    """Returns `normal` of a heading, without the sign of a link to itself that manuals put behind headings."""
    return normal(text).rstrip("¶ ")


def cells(text: str) -> list[bytes]:
    """Returns the cells of table rows, breadcrumbs and bars of links, one per line of the text, each as under `normals`."""
    split = "\n".join([bare for cell in CELL.split(text.strip()) if (bare := cell.strip(" |[]"))])
    return [cell for cell in normals(split) if cell]


def cells_of_rows(text: str) -> list[bytes]:
    """Returns the cells of those lines of a text whose cells are counted one by one."""
    rows = [line for line in text.split("\n") if "\t" in line or "»" in line or " | " in line]
    return cells("\n".join(rows)) if rows else []


def title_of(text: str, headings: np.ndarray, frames: np.ndarray) -> str:
    """Returns the title of a page as under `plain`: its first heading of the highest level that it has, outside frame elements.

    Args:
        text: Its text.
        headings: Level of the heading that each line that is not empty is in; 0 for none.
        frames: Whether each of these lines is in a frame element.
    """
    places = ((headings > 0) & ~frames).nonzero()[0]
    if not len(places):
        return ""
    return plain([line for line in text.split("\n") if line][places[headings[places].argmin()]])


def key_of(host: str) -> Callable[[Iterable[bytes]], list[int]]:
    """Returns the function from normal texts to their keys on a host. The key of b"" is the host's own."""
    from xxhash import xxh3_64_intdigest

    seed = xxh3_64_intdigest(host.encode("utf-8", "surrogatepass"))
    return lambda texts: [xxh3_64_intdigest(text, seed) for text in texts]
