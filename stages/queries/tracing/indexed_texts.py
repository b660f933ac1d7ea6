"""Finds the index of the texts that a start of `loam trace` was made from, and opens its pieces.

Guarantee: read-only. Only an index with all these documents, conversations and pairs is opened. Texts of the index that the start was not
made from are not searched: a pretrained checkpoint has no conversations.
Cost: a few queries of the index; the files of the pieces are mapped, not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stages.core.contract.errors import RecipeError
from stages.core.index import database
from stages.queries.tracing.trace_start import Start
from stages.text.match.example_texts import TextKind

if TYPE_CHECKING:
    from stages.text.match.suffix_array import TextPiece

INDEX_VERSION = 3
"""The version of stage text_index that is read. Version 1 has too few places in scripts without spaces, so counts would be too low. Version 2
has documents alone."""
TABLES: Mapping[TextKind, str] = {TextKind.CONVERSATION: "conversations", TextKind.PREFERENCE_PAIR: "preferences"}
"""Kind -> node, which is also the name of its table and of its view."""


class _Index(NamedTuple):
    """An index: its artifact, the version of the stage, its number, and which of the wanted artifacts' texts it holds."""

    artifact: str
    version: int
    number: int
    holds: Sequence[str]


def texts_of(ask: database.QueryFunction, of: Start) -> dict[TextKind, str]:
    """Returns the artifacts of the texts that a start was made from, also those that are not in this home.

    Args:
        ask: runs a query on one connection to the index.
        of: the start of the answer.

    Returns:
        Kind -> id of the artifact, in the order of TextKind, without the kinds of which the start has none.
    """
    gone = {name.partition("/")[0]: name for name in of.gone}
    examples = {kind: of.of.get((node, node), gone.get(node, "")).strip("/") for kind, node in TABLES.items()}
    found = {TextKind.DOCUMENT: _documents(ask, of), **examples}
    return {kind: artifact for kind, artifact in found.items() if artifact}


def index_folder(home: Path, of: Start) -> Path:
    """Returns the folder of the newest index of the texts that a start was made from.

    Args:
        home: the home folder.
        of: the start of the answer.

    Raises:
        RecipeError: there are no texts, or they have no index, or only one that lacks some of them or that an older version of the stage built.
    """
    wanted = list(database.with_connection(home, lambda ask: texts_of(ask, of)).values())
    held = _indexes(home, wanted)
    if not held:
        raise RecipeError(
            f"The texts that {of.alias} was made from have no index.",
            where=f"{', '.join(wanted) or of.artifact} of {home}",
            do="Write `text_index: {piece_mib: 256}` into the recipe and run `loam stage text_index RECIPE`.",
        )
    newest = max(held, key=lambda one: (len(one.holds), one.version, one.number))
    folder = home / "artifacts" / newest.artifact
    if newest.version < INDEX_VERSION:
        what = f"The index of the texts that {of.alias} was made from was built by an older version."
        raise RecipeError(what, where=str(folder), do="Run `loam stage text_index RECIPE`.")
    if lacks := [name for name in wanted if name not in newest.holds]:
        raise RecipeError(
            f"No index holds all texts that {of.alias} was made from; the newest lacks those of {', '.join(lacks)}.",
            where=str(folder),
            do=f"Run `loam stage text_index RECIPE` with the recipe of {of.run or of.alias}, or start from a checkpoint before it with --checkpoint.",
        )
    return folder


def open_pieces(index: Path, kinds: Iterable[TextKind]) -> list[list[TextPiece]]:
    """Opens the pieces of an index.

    Args:
        index: its folder.
        kinds: the kinds of texts to open.

    Returns:
        The pieces of each kind.

    Raises:
        RecipeError: a file is missing or has another size.
    """
    from stages.text.match.suffix_array import open_piece

    problem, found = "", []
    try:
        described = json.loads((index / "text_index.json").read_text(encoding="utf-8"))
        for kind in kinds:
            pieces = [open_piece(index / "pieces" / kind / f"{number:05d}") for number in range(described[kind]["pieces"])]
            if (there := sum(len(piece.order) for piece in pieces)) != described[kind]["words"]:
                problem = f"it has {there:,} of {described[kind]['words']:,} words"
            found.append(pieces)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    if problem:
        raise RecipeError(
            f"The index of the text is damaged: {problem}.", where=str(index), do="Run `loam stage text_index RECIPE --force`."
        )
    return found


def _indexes(home: Path, wanted: Sequence[str]) -> list[_Index]:
    """Returns the indexes that hold texts of some artifacts, or of others with the same content, which give an index the same key."""
    sql = "SELECT one.artifact_id, other.artifact_id FROM artifact one JOIN artifact other USING (node, digest) WHERE list_contains(?, one.artifact_id)"
    equal = {name: {name} for name in wanted}
    for name, other in database.query(home, sql, [list(wanted)])[1]:
        equal[name].add(other)
    sql = (
        "SELECT child, any_value(version), any_value(number), list(parent) FROM edge JOIN artifact ON artifact_id = child "
        "WHERE kind = 'text_index' GROUP BY child"
    )
    found = []
    for child, version, number, parents in database.query(home, sql)[1]:
        if holds := [name for name in wanted if not equal[name].isdisjoint(parents)]:
            found.append(_Index(child, version, number, holds))
    return found


def _documents(ask: database.QueryFunction, of: Start) -> str:
    """Returns the artifact of the documents that encode reads; empty if there is none. An imported one has no decisions to find it by."""
    if of.node == "decontaminate":
        return of.artifact
    reader = of.artifact if of.node == "text_index" else of.of.get(("encode", "spans"), "").strip("/")
    found = ask("SELECT parent FROM edge WHERE child = ? AND role = 'documents'", [reader])[1]
    return str(found[0][0]) if found else ""
