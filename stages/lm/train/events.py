"""Events from a rank to its stage: one JSON line per event, appended to events-<rank>.jsonl.

Kinds: "log" (text), "partition" (parameters held by a rank), "step" (metrics of one step), "eval" (validation metrics), "scored" (sequences done
and in total), "error" (text and sequences; for an error of the operating system also its number and file). "error" is the last event of a rank
that fails. On a full disk, a rank cannot write it; therefore a rank that ends because of an operating-system error exits with
OS_ERROR_EXIT + the error number.
Guarantee: a reader that sees a newline sees the whole event.
The module does not import torch.
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
    """Appends the events of one rank. Open it with `open_events`."""

    file: IO[str]

    def write(self, kind: str, **values: Any) -> None:
        self.file.write(json.dumps({"kind": kind, **values}) + "\n")
        self.file.flush()

    def log(self, text: str) -> None:
        self.write("log", text=text)


def event_path(scratch: Path, rank: int) -> Path:
    return scratch / f"events-{rank}.jsonl"


def open_events(scratch: Path, rank: int) -> EventWriter:
    """Returns a writer that appends to the rank's event file."""
    return EventWriter(event_path(scratch, rank).open("a"))


@dataclass
class EventTail:
    """Reads the events that were appended since the last read, complete lines only."""

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
