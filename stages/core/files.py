"""Durable files: written beside, fsynced, renamed into place. What a record needs so that a kill or a power cut leaves the old or the new."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """The file holds all of `text` or what it held before. Writers at the same time do not mix: the last one wins."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Makes a file, or what was renamed or created in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
