"""Checks, before any work, whether a folder can be a home: whether all libraries that use the home can work with its path.

Source: tests with Prefect's SQLite URL, DuckDB and fsspec. %, #, quotes, blanks, *, [ and { work.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stages.record.contract.errors import RecipeError

OTHER_HOME = "Name another folder with --home or LOAM_HOME."
LONGEST_HOME = 400
"""Bytes. SQLite accepts paths of at most 512 bytes, and Prefect's database is below the home."""
LONGEST_NAME = 255
"""Bytes, the limit of common file systems for one name."""
REFUSED = {
    "?": "the URL of Prefect's database would name another file",
    "\\": "DuckDB reads it as a slash",
    "::": "fsspec reads it as a chain of file systems",
}
"""Characters that a home's path cannot have, and why not."""


def refuse_odd(home: Path) -> None:
    """Checks the path of a home. A path that does not exist is valid; the first writer creates it.

    Raises:
        RecipeError: The path cannot be a home.
    """
    fault = _path_fault(home) or _path_fault(Path(os.path.realpath(home))) or _folder_fault(home)
    if fault:
        raise RecipeError(f"The home folder {fault}.", where=ascii(str(home))[1:-1], do=OTHER_HOME)


def _path_fault(path: Path) -> str:
    text = str(path)
    odd = next((c for c in text if c in REFUSED or not c.isprintable()), "") or ("::" if "::" in text else "")
    if odd:
        return f"has {ascii(odd)} in its path: {REFUSED.get(odd, 'it would break lines and tables')}"
    if len(os.fsencode(text)) > LONGEST_HOME:
        return f"has a path of more than {LONGEST_HOME} bytes, too long for SQLite"
    if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
        return f"has a name of more than {LONGEST_NAME} bytes in its path"
    return ""


def _folder_fault(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            is_there = stat.S_ISDIR(os.stat(folder).st_mode)
        except FileNotFoundError:
            if os.path.islink(folder):
                return f"is below {folder}, a link whose target does not exist"
            continue
        except NotADirectoryError:  # a parent is a file; the loop reaches it later
            continue
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if not is_there:
            return f"is {folder}, which is a file" if folder == path else f"is below {folder}, which is a file"
        return "" if os.access(folder, os.R_OK | os.X_OK) else f"is in {folder}, which you may not read"
    return ""
