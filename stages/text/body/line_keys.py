"""Names the lines and cells of pages by 64-bit keys, under which the pages of a host are compared.

Guarantee: a key depends on the host and on the words of a line alone: not on its numbers, case, list sign, spaces or place.
Cost: 1 µs per line. With 10^9 different lines, two of them share a key with a probability of 3 %, and then count as one.
Source: xxHash (XXH3, 64 bits).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

KEYS_VERSION = 1
"""Counts of another version cannot be added up with those of this one."""
DIGITS = bytes.maketrans(b"123456789", b"000000000")
SIGNS = ("•", "0.")
CELL = re.compile(r"[\t\n]+|\s\|\s|\s{2,}|»|→")


def host_of(url: str) -> str:
    """Returns the host of a URL with its port, in lower case; "" without one."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""


def normals(text: str) -> list[str]:
    r"""Returns of each line of a text that is not empty its words in lower case, without list sign and with every number of Western digits as 0.

    >>> normals("  • Page 12  of 30\n\n7. See")
    ['page 0 of 0', 'see']
    """
    data = text.casefold().encode("utf-8", "surrogatepass").translate(DIGITS)  # bytes are three times as fast as a regular expression
    while b"00" in data:
        data = data.replace(b"00", b"0")
    split = (line.split() for line in data.decode("utf-8", "surrogatepass").split("\n") if line)
    return [" ".join(words[1:] if len(words) > 1 and words[0] in SIGNS else words) for words in split]


def normal(text: str) -> str:
    """Returns `normals` of one line."""
    return next(iter(normals(text)), "")


def plain(text: str) -> str:
    """Returns `normal` of a heading, without the sign of a link to itself that manuals put behind headings."""
    return normal(text).rstrip("¶ ")


def cells(text: str) -> list[str]:
    """Returns the cells of table rows, breadcrumbs and bars of links, one per line of the text, each as under `normal`."""
    split = "\n".join([bare for cell in CELL.split(text.strip()) if (bare := cell.strip(" |[]"))])
    return [cell for cell in normals(split) if cell]


def has_cells(text: str) -> bool:
    """Returns whether the cells of a line are counted one by one."""
    return "\t" in text or " | " in text or "»" in text


def title_of(text: str, headings: Sequence[int], frames: Sequence[bool]) -> str:
    """Returns the title of a page as under `plain`: its first heading of the highest level that it has, outside frame elements.

    Args:
        text: Its text.
        headings: Level of the heading that each line that is not empty is in; 0 for none.
        frames: Whether each of these lines is in a frame element.
    """
    levels = [(level, i) for i, (level, frame) in enumerate(zip(headings, frames, strict=True)) if level and not frame]
    if not levels:
        return ""
    _, first = min(levels)
    return plain([line for line in text.split("\n") if line][first])


def key_of(host: str) -> Callable[[Iterable[str]], list[int]]:
    """Returns the function from normal texts to their keys on a host. The key of "" is the host's own."""
    from xxhash import xxh3_64_intdigest

    seed = xxh3_64_intdigest(host.encode("utf-8", "surrogatepass"))
    return lambda texts: [xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed=seed) for text in texts]
