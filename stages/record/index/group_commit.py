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

from stages.record.processes import lock_file

NUMBERS = struct.Struct("<QQ")  # the number of the last group commit that started, and of the last one that finished


@contextmanager
def group_commit(path: Path) -> Iterator[bool]:
    """Holds the lock while the block runs. A group commit whose block raises does not count as finished.

    A lock file that cannot be created is an OSError.

    Yields:
        False if a group commit that started after this call has finished, else True.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        before = _numbers(handle)[0]
        lock_file(handle, wait=True)
        started, finished = _numbers(handle)
        if finished > before:
            yield False
            return
        os.pwrite(handle, NUMBERS.pack(started + 1, finished), 0)
        yield True
        os.pwrite(handle, NUMBERS.pack(started + 1, started + 1), 0)
    finally:
        os.close(handle)


def _numbers(handle: int) -> tuple[int, int]:
    data = os.pread(handle, NUMBERS.size, 0)
    started, finished = NUMBERS.unpack(data) if len(data) == NUMBERS.size else (0, 0)
    return started, finished
