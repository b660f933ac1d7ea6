"""Matches a URL against the patterns of a recipe, in which % stands for any characters.

Guarantee: the same result as SQL's LIKE with % as the only wildcard.
Cost: one regular expression per list of patterns, compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache


def matches(url: str, patterns: Sequence[str]) -> bool:
    """Returns whether a URL matches one of the patterns, in which % stands for any characters."""
    whole, parts = _patterns(tuple(patterns))
    return url in whole or (parts is not None and parts.fullmatch(url) is not None)


@lru_cache(maxsize=8)
def _patterns(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Returns (patterns without %, one regular expression for the others or None)."""
    parts = [".*".join(map(re.escape, pattern.split("%"))) for pattern in patterns if "%" in pattern]
    return frozenset(p for p in patterns if "%" not in p), re.compile("|".join(parts), re.DOTALL) if parts else None
