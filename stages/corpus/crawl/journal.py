"""Keeps the captures of a running crawl on disk, so that a killed crawl can continue from them.

Guarantee: a capture is in the journal before the crawler continues. A line torn by a kill is cut off. The date is that of the first start,
so a killed and continued crawl gives the same bytes as an uninterrupted one (if the site has not changed). Responses are kept. Failed
requests are not kept; they are tried again.
Cost: each body is stored once more on disk, in base 64.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict, deque
from dataclasses import asdict
from pathlib import Path

from stages.corpus.warc.capture import Capture, CrawlOutcome


class Journal:
    """The journal of one crawl."""

    def __init__(self, path: Path, date: str) -> None:
        """Opens the journal, or starts one.

        Args:
            path: Its file.
            date: Date of the first start, such as "2026-11-20T19:00:00Z". An existing journal keeps its own.
        """
        self.path, self.date = path, date
        self._lines: dict[str, deque[int]] = defaultdict(deque)  # URL -> file offsets of its responses, in order of arrival
        end = self._read()
        self._file = path.open("r+b" if end else "w+b")
        self._file.truncate(end)
        if not end:
            self._write({"date": date})

    def take(self, url: str) -> Capture | None:
        """Returns the next response for the URL from before the kill; None if no more are stored."""
        if not self._lines[url]:
            return None
        self._file.seek(self._lines[url].popleft())
        fields = json.loads(self._file.readline())
        pairs = {name: tuple((k, v) for k, v in fields[name]) for name in ("headers", "request_headers")}
        return Capture(**fields | pairs | {"body": base64.b64decode(fields["body"])})

    def add(self, capture: Capture) -> None:
        """Stores a response. Other outcomes are ignored."""
        if capture.outcome == CrawlOutcome.FETCHED:
            self._write(asdict(capture) | {"body": base64.b64encode(capture.body).decode()})

    def close(self) -> None:
        """Closes the file. The journal remains on disk."""
        self._file.close()

    def _write(self, line: object) -> None:
        """Appends one JSON value as a line."""
        self._file.seek(0, 2)
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()

    def _read(self) -> int:
        """Returns the end of the last complete line, in bytes, and records the offsets of the responses."""
        if not self.path.exists():
            return 0
        end = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                value = json.loads(line)
                if end:
                    self._lines[value["url"]].append(end)
                else:
                    self.date = value["date"]
                end += len(line)
        return end
