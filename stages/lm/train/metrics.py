"""Per-step metrics as a file that survives a kill without doubled steps, and small conversions.

Guarantee: after `open_metrics(path, step)` the file holds exactly the lines of steps ≤ step, so that a run that was killed
and goes on leaves the same curve as one that was not. No torch.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


@dataclass
class MetricsFile:
    """One JSON line per event: {"step", "tokens", "loss", …}; step counts finished steps, so the first line is step 1."""

    file: IO[str]

    def write(self, step: int, values: dict[str, Any]) -> None:
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def sync(self) -> None:
        os.fsync(self.file.fileno())


def open_metrics(path: Path, step: int) -> MetricsFile:
    """Opens the file for appending after `step`; lines of later steps, and a half-written last line, are cut off."""
    kept = [line for line in read_metrics(path) if line["step"] <= step] if step else []
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in kept))
    os.replace(partial, path)
    return MetricsFile(path.open("a"))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines, in order."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def bits_per_byte(nats_per_token: float, tokens: int, documents: int, bytes_: int) -> float:
    """Bits per UTF-8 byte from the mean loss: every token of the documents but each one's first is predicted."""
    return nats_per_token * (tokens - documents) / (math.log(2) * bytes_)
