"""Writes lines of YAML with comments, and the patterns that name files.

Guarantee: what is written reads back as the same values. A pattern names exactly the files that it is made for.
Cost: one listing per folder of files.
"""

from __future__ import annotations

import glob
import os
import textwrap
from collections.abc import Collection, Iterator, Sequence

from stages.record.store.patterns import files_of

WIDTH = 118
COLUMN = 34  # where a comment begins beside a short line


def yaml_line(text: str, about: str, indent: int = 0) -> Iterator[str]:
    """Yields a line of YAML with its comment beside it, or above it if both are too long for one line."""
    start = " " * indent
    beside = f"{start + text:<{COLUMN}} # {about}"
    if len(beside) <= WIDTH:
        yield beside
    else:
        yield from textwrap.wrap(about, WIDTH, initial_indent=f"{start}# ", subsequent_indent=f"{start}# ")
        yield start + text


def yaml_comment(text: str, indent: int = 0) -> Iterator[str]:
    """Yields lines of comment."""
    start = " " * indent + "# "
    yield from textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=start)


def quoted(code: str) -> str:
    """Returns a language code as YAML; "no" without quotes would be false."""
    return f'"{code}"' if code in ("no", "on", "off", "yes") else code


def decimal(rate: float) -> str:
    """Returns a number as YAML 1.1 reads it: with a point, also before an exponent."""
    text = f"{rate:f}".rstrip("0")
    return text if float(text) == rate else f"{rate:.1e}"


def grouped(paths: Sequence[str], others: Collection[str]) -> list[str]:
    """Returns patterns for a recipe that name exactly these files: one per folder and ending where that is possible, else the paths.

    Args:
        paths: Absolute paths.
        others: Absolute paths that no pattern may name.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        groups.setdefault((folder, name[name.find(".") :] if "." in name[1:] else ""), []).append(path)
    named: list[str] = []
    for (folder, ending), members in groups.items():
        pattern = os.path.join(glob.escape(folder), f"*{ending}")
        there = files_of(pattern, folder) if ending and len(members) > 2 else []
        if there and set(there) == set(members) and not set(there) & set(others):
            named.append(pattern)
        else:
            named += [glob.escape(path) for path in members]
    return sorted(named)
