"""Side tables: the Parquet files of an artifact that the index shows as SQL views, as a stage declares them.

A table is one file (`hits.parquet`) or a folder of files (`decisions/*.parquet`) in the artifact. The manifest records name and view,
so that the index is made from manifests alone; types and meanings stand here once, for the code that writes the file and for VIEWS.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""Names of tables and views: what SQL needs no quotes for, in one case."""


@dataclass(frozen=True)
class Column:
    """type: a short type of tables.schema ("uuid", "int64", ...); about: what a value means, with its unit."""

    type: str
    about: str


@dataclass(frozen=True)
class SideTable:
    """A table that a stage writes.

    name: file or folder in the artifact, without ".parquet". view: its view in the index; stages that write the same kind of rows share it.
    about: what one row is. more: which further columns there are, where they follow from settings or rules.
    Raises ValueError when name or view is no plain SQL name.
    """

    name: str
    view: str
    about: str
    columns: Mapping[str, Column]
    more: str = ""

    def __post_init__(self) -> None:
        for name in (self.name, self.view):
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a table or view: use a-z, 0-9 and _, a letter first, at most 63")

    @property
    def types(self) -> dict[str, str]:
        """Column -> short type, as tables.schema takes them."""
        return types_of(self.columns)


def types_of(columns: Mapping[str, Column]) -> dict[str, str]:
    """Column -> short type."""
    return {name: column.type for name, column in columns.items()}
