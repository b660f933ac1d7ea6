"""Leases: locks that say which run works on what, so that two runs on one home never build the same key at the same time.

A lease is a file that its owner locks with flock. The kernel releases the lock when the owner dies, however it dies, and no clock decides.
The file holds owner, process, boot id, host and a heartbeat counter. Messages use them. They also protect a home that several machines
share over a file system whose locks do not work across machines: a lease that was written under another boot id is taken over only after
its counter did not change for STALE_S by the reader's own monotonic clock.
Guarantee: at most one owner. The lease of a dead owner is taken over. The file is removed when the block ends.
Cost: two small writes, one thread that wakes every BEAT_S.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from stages.record.processes import lock_file

BEAT_S = 5.0
STALE_S = 30.0
POLL_S = 0.1
RECORD_BYTES = 512  # less than one page, written in one call, so that a reader never sees half a record

Clock = Callable[[], float]


class _Holder(TypedDict):
    """The content of a lease file: the run that holds the lease, its process, the boot and the machine, and the heartbeat counter."""

    owner: str
    pid: int
    boot_id: str
    host: str
    beat: int


@contextmanager
def lease(path: Path, owner: str, waiting: Callable[[str], None] = lambda text: None, clock: Clock = time.monotonic) -> Iterator[None]:
    """Holds the lease `path` while the block runs. Waits while another owner holds it. Raises OSError if the file cannot be created.

    Args:
        path: The lease file.
        owner: The run that wants the lease.
        waiting: Is called once with the current holder, if there is one.
        clock: Monotonic seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path, waiting, clock)
    try:
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(handle, owner, stop), daemon=True)
        _write(handle, owner, 0)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            beat.join()
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def clear(path: Path, also: Callable[[], None] = lambda: None) -> None:
    """Removes a lease file that a killed owner left, and calls `also` while holding the lease. A lease that is held stays as it is."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if lock_file(handle) and _same_file(handle, path) and _of_this_boot(_read(handle)):
            also()
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def held_by(path: Path) -> str:
    """Returns the holder of a lease, as "run tiny-7, process 123 on host". Empty when nobody holds it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        return "" if lock_file(handle, shared=True) else _text(_read(handle))
    finally:
        os.close(handle)


def is_live(path: Path, clock: Clock = time.monotonic) -> bool:
    """Returns whether a lease has an owner that works: its lock is held, or it is of another boot and its heartbeat rises.

    A lease of this boot is decided at once. One of another boot, which another machine may hold over a file system without locks, is
    watched for up to STALE_S.

    Args:
        path: The lease file. A missing file has no owner.
        clock: Monotonic seconds.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not lock_file(handle, shared=True):
            return True
        first, watch = _read(handle), _Watch(clock)
        while not watch.dead(holder := _read(handle)):
            if holder != first:
                return True
            time.sleep(POLL_S)
        return False
    finally:
        os.close(handle)


def boot_id() -> str:
    """Returns the id that Linux creates at every boot. Empty on other systems."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _acquire(path: Path, waiting: Callable[[str], None], clock: Clock) -> int:
    """Returns a locked handle of the file that `path` names now."""
    reported, watch = False, _Watch(clock)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if lock_file(handle) and _same_file(handle, path) and watch.dead(_read(handle)):
            return handle
        if not reported and (who := _text(_read(handle))):
            reported = True
            waiting(who)
        os.close(handle)
        time.sleep(POLL_S)


class _Watch:
    """Whether the owner recorded in an unlocked lease is dead. True for this boot; else only after its heartbeat stopped for STALE_S."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.last, self.since = clock, "", clock()

    def dead(self, holder: _Holder | None) -> bool:
        if _of_this_boot(holder):
            return True
        mark = json.dumps(holder)
        if mark != self.last:
            self.last, self.since = mark, self.clock()
        return self.clock() - self.since >= STALE_S


def _of_this_boot(holder: _Holder | None) -> bool:
    """Returns whether a lease was written since this machine started, or by nobody. The state of its lock then says whether it is held."""
    return holder is None or holder["boot_id"] == boot_id()


def _same_file(handle: int, path: Path) -> bool:
    """Returns whether `path` still names the open file. It does not if the last owner removed the file between our open and our lock."""
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _beat(handle: int, owner: str, stop: threading.Event) -> None:
    count = 0
    while not stop.wait(BEAT_S):
        count += 1
        _write(handle, owner, count)


def _write(handle: int, owner: str, beat: int) -> None:
    holder: _Holder = {"owner": owner[:120], "pid": os.getpid(), "boot_id": boot_id(), "host": platform.node()[:64], "beat": beat}
    os.pwrite(handle, json.dumps(holder).encode().ljust(RECORD_BYTES), 0)


def _read(handle: int) -> _Holder | None:
    """Returns the holder that a lease names, or None when its owner was killed before it wrote the record."""
    try:
        holder: _Holder | None = json.loads(os.pread(handle, RECORD_BYTES, 0))
    except ValueError:
        return None
    return holder or None


def _text(holder: _Holder | None) -> str:
    return f"run {holder['owner']}, process {holder['pid']} on {holder['host']}" if holder else ""
