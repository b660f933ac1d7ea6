"""Whether a URL is one of a recipe's patterns, in which % stands for any characters.

Guarantee: the same answer as SQL's LIKE without its other wildcard. Cost: one expression per list of patterns, made once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache


def matches(url: str, patterns: Sequence[str]) -> bool:
    """Whether a URL is one of the patterns, in which % stands for any characters."""
    whole, parts = _patterns(tuple(patterns))
    return url in whole or (parts is not None and parts.fullmatch(url) is not None)


@lru_cache(maxsize=8)
def _patterns(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """(URLs without %, one expression for the others), made once per list."""
    parts = [".*".join(map(re.escape, pattern.split("%"))) for pattern in patterns if "%" in pattern]
    return frozenset(p for p in patterns if "%" not in p), re.compile("|".join(parts), re.DOTALL) if parts else None
