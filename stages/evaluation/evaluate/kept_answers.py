"""Keeps what a model answered, so that an interrupted evaluation goes on where it was.

Guarantee: an answer is kept under a digest of the token ids that it is an answer to. The file is in the node's scratch folder, which belongs to
one key and one code: one model, one context, one set of tasks. A line that a kill cut off is removed; its requests are asked again.
Cost: 100 bytes per request, in the file and in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Answer = tuple[str, str] | tuple[float, bool]
"""A text and why it ended, or the log-probability of a continuation and whether all its tokens are the most likely ones."""


def digest(kind: str, *parts: Sequence[int] | str) -> str:
    """Returns a digest of a request: its kind, and its token ids or texts, 32 hex digits."""
    return hashlib.blake2b(json.dumps([kind, *parts]).encode(), digest_size=16).hexdigest()


class KeptAnswers:
    """Answers by digest, of which new ones are appended to a file.

    Args:
        path: The file, which need not exist; None keeps them in memory alone.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Reads what the file holds."""
        self._path = path
        self._known: dict[str, Answer] = {}
        if path is None or not path.exists():
            return
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            os.truncate(path, len(whole))
        for line in whole.splitlines():
            self._known |= {key: tuple(answer) for key, answer in json.loads(line).items()}

    def __contains__(self, key: str) -> bool:
        """Returns whether an answer is known."""
        return key in self._known

    def __getitem__(self, key: str) -> Answer:
        """Returns an answer that is known."""
        return self._known[key]

    def add(self, answers: Mapping[str, Answer]) -> None:
        """Keeps answers."""
        self._known |= answers
        if self._path and answers:
            with self._path.open("ab") as file:
                file.write(json.dumps(answers).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
