"""Keeps what commands of several runs found, as JSON files of the home: `<home>/sweeps/` and `<home>/decisions/`.

Guarantee: a file is written under a temporary name, fsynced and renamed, and its folder survives a power cut. What is read was written with the
same fields.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter, ValidationError

from stages.record.contract import strict_json
from stages.record.contract.errors import StageError
from stages.record.store.files import make_durably, write_durably

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kept = TypeVar("Kept")


def write_kept(home: Path, path: Path, value: DataclassInstance) -> None:
    """Replaces a file of the home by a value as JSON. A value that holds a number that is not finite is a ValueError."""
    make_durably(path.parent, home)
    write_durably(path, json.dumps(asdict(value), indent=1, allow_nan=False) + "\n")


def read_kept(kind: type[Kept], path: Path) -> Kept:
    """Returns the value that a file holds.

    Raises:
        StageError: The file cannot be read.
    """
    try:
        return TypeAdapter(kind).validate_python(strict_json.read_object(path))
    except (OSError, strict_json.BadJsonError, ValidationError) as error:
        what = f"The record cannot be read: {str(error).splitlines()[0]}."
        raise StageError(what, where=str(path), do="Move it away, and run the same command again.") from None
