"""Whose turn it is to write what many want written: a lock under which one writer does the work of all who wait.

Guarantee: one at a time, freed by the kernel when its holder dies; a caller is spared only when a round that started after his
call was finished, so what he wrote before it was there to be taken in. No clock decides. Cost: one file of 16 bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.processes import lock_file

ROUNDS = struct.Struct("<QQ")  # the number of the last round that started, and of the last that was finished


@contextmanager
def turn(path: Path) -> Iterator[bool]:
    """Holds the lock while the block runs; yields False when another's round, started after this call, was finished meanwhile.

    A block that raises has not finished its round. Raises OSError when the file cannot be made.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        before = _rounds(handle)[0]
        lock_file(handle, wait=True)
        started, finished = _rounds(handle)
        if finished > before:
            yield False
            return
        os.pwrite(handle, ROUNDS.pack(started + 1, finished), 0)
        yield True
        os.pwrite(handle, ROUNDS.pack(started + 1, started + 1), 0)
    finally:
        os.close(handle)


def _rounds(handle: int) -> tuple[int, int]:
    data = os.pread(handle, ROUNDS.size, 0)
    started, finished = ROUNDS.unpack(data) if len(data) == ROUNDS.size else (0, 0)
    return started, finished
