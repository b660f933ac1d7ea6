"""Writes log.txt in the folder of a run: what the run shows of its nodes, line by line with the time in UTC, and how the run failed.

The file is for people. It is no artifact, is in no key, and is deleted with the record of its run.
Guarantee: a line is in the file when `write` returns, so a killed run has its lines. Text passes `secrets.redact` and `printable`. The
lines of one node take at most NODE_BYTES; the file then says that the rest is left out. Lines of the run itself, such as the traceback of a
failure, are always written, each text with at most TEXT_CHARS. A log that cannot be written never fails a run.
Cost: one `redact` and one write per line.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.record.contract.environment import utc_now
from stages.record.contract.printable import printable
from stages.record.contract.secrets import redact
from stages.record.store import runs

FILE = "log.txt"
NODE_BYTES = 8_000_000
"""Bytes of one node's lines. A training of ten days writes about 4 MB, a line of progress every 30 s included."""
TEXT_CHARS = 64_000
"""Characters of one text. The middle of a longer one is left out, because a traceback begins and ends with what matters."""

Write = Callable[[str, str], None]
"""Writes a text to the log. The second argument is the node that it belongs to, empty for the run itself."""


def log_path(home: Path, run_id: str) -> Path:
    """Returns the path of a run's log."""
    return runs.folder_of(home, run_id) / FILE


@contextmanager
def run_log(home: Path, run_id: str) -> Iterator[Write]:
    """Opens the log of a recorded run for appending while the block runs.

    Args:
        home: The home folder.
        run_id: The run.

    Yields:
        The function that writes a text.
    """
    handle = -1
    with suppress(OSError):  # a full disk: the run then fails by itself, with a message of its own
        handle = os.open(log_path(home, run_id), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    lock, used, full = threading.Lock(), Counter[str](), set[str]()

    def write(text: str, node: str) -> None:
        data = _stamped(text)
        with lock, suppress(OSError):
            if node in full:
                return
            if node and used[node] + len(data) > NODE_BYTES:
                full.add(node)
                data = _stamped(f"{node:<18} its lines reached {NODE_BYTES:,} bytes; the rest is left out here")
            used[node] += len(data)
            os.write(handle, data)

    try:
        yield write
    finally:
        if handle >= 0:
            os.close(handle)


def _stamped(text: str) -> bytes:
    """Returns the lines of a text, each behind the time, as bytes."""
    clean = printable(redact(text))
    if len(clean) > TEXT_CHARS:
        half = TEXT_CHARS // 2
        clean = f"{clean[:half]}\n[{len(clean) - 2 * half:,} characters are left out here]\n{clean[-half:]}"
    now = utc_now()
    return "".join(f"{now}  {line}\n" for line in clean.split("\n")).encode("utf-8", "backslashreplace")
