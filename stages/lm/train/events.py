"""What a rank tells the stage: one JSON line per event, appended to events-<rank>.jsonl.

Kinds: "log" (text), "partition" (what a rank holds), "step" (the metrics of one step), "eval" (validation metrics), "error" (text, the last line of a rank
that gives up; of an error of the operating system also its number and file). On a full disk that line cannot be written, so a rank
that gives up for the operating system ends with OS_ERROR_EXIT + the number.
Guarantee: a reader that sees a newline sees the whole event. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

OS_ERROR_EXIT = 64


@dataclass
class EventWriter:
    """Appends events of one rank; opened with `open_events`."""

    file: IO[str]

    def write(self, kind: str, **values: Any) -> None:
        self.file.write(json.dumps({"kind": kind, **values}) + "\n")
        self.file.flush()

    def log(self, text: str) -> None:
        self.write("log", text=text)


def event_path(scratch: Path, rank: int) -> Path:
    return scratch / f"events-{rank}.jsonl"


def open_events(scratch: Path, rank: int) -> EventWriter:
    """A writer that appends to the rank's file."""
    return EventWriter(event_path(scratch, rank).open("a"))


@dataclass
class EventTail:
    """Reads what was appended since the last look, whole lines only."""

    path: Path
    offset: int = 0
    partial: bytes = field(default=b"")

    def read(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        self.offset += len(data)
        *lines, self.partial = (self.partial + data).split(b"\n")
        yield from (json.loads(line) for line in lines if line)
