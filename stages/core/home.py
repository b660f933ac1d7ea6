"""Which folders can be a home. DuckDB takes `?` for the start of options and a backslash for a separator; control characters would
reach terminals and logs."""

from __future__ import annotations

import os
from pathlib import Path

from stages.core.errors import RecipeError


def refuse_odd(home: Path) -> None:
    """Raises RecipeError for a path that cannot be a home, before any work."""
    for path in (home, Path(os.path.realpath(home))):
        odd = sorted({c for c in str(path) if c in "?\\" or not c.isprintable()})
        if odd:
            raise RecipeError(
                f"A home cannot lie in a folder whose path holds {', '.join(ascii(c) for c in odd)}.",
                where=ascii(str(path)),
                do="Name another folder with --home or LOAM_HOME; blanks and other signs are fine.",
            )
    for folder in (home, *home.parents):
        if os.path.lexists(folder):
            if not os.path.isdir(folder):
                raise RecipeError("The home is no folder.", where=str(folder), do="Name another folder with --home or LOAM_HOME.")
            return
