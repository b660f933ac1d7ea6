"""What core, lm and flows ask of the operating system: a child that dies with its parent, a free port, a lock on a file.

A leaf: it imports the standard library alone, because the ranks of lm may not import core and need the same as core's workers.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int = 0) -> None:
    """In a new child: the kernel kills it when the thread that started it ends, however that ends. Does so on Linux only.

    Args:
        parent: Process id of the parent; if that is already gone, this process ends at once with exit code 1. 0: not looked at.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lock_file(handle: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Locks an open file by flock until it is closed; the kernel frees the lock when its owner dies.

    Args:
        handle: File descriptor. Another descriptor of the same file, of this process too, is another owner.
        shared: Whether other shared locks may stand beside this one.
        wait: Whether to wait for it.

    Returns:
        False when another owner has it.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
