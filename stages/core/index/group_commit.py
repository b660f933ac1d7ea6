"""Provides a group commit: a lock under which one writer commits the work of all writers that wait for the lock.

Guarantee: one writer at a time. The kernel releases the lock when its holder dies. A waiting caller skips its own commit only if a group
commit that started after its call has finished. That commit saw everything that the caller had written before its call. No clock decides.
Cost: one file of 16 bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.processes import lock_file

ROUNDS = struct.Struct("<QQ")  # the number of the last group commit that started, and of the last one that finished


@contextmanager
def turn(path: Path) -> Iterator[bool]:
    """Holds the lock while the block runs. Yields False if a group commit that started after this call has finished, else True.

    A group commit whose block raises does not count as finished.

    Raises:
        OSError: The lock file cannot be created.
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
