"""What the crawler makes of one URL: the outcome, and the response with its request.

The crawler makes captures, its journal keeps them, and the WARC writer writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CrawlOutcome(StrEnum):
    """What happened to a URL. All values but FETCHED are reasons to drop it."""

    FETCHED = "fetched"
    ROBOTS = "robots"
    """robots.txt forbids it."""
    FAILED = "failed"
    """No response. The note says why."""


@dataclass(frozen=True)
class Capture:
    """One URL that was tried. outcome: a CrawlOutcome. note: why there was no response. Headers are as they were sent."""

    url: str
    outcome: str
    status: int = 0
    reason_phrase: str = ""
    mime: str = ""
    request_line: str = ""
    request_headers: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    cut: bool = False
    note: str = ""
