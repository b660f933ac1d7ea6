"""Defines the parts of a key, as a manifest records them, and computes the key from them.

Guarantee: the key depends on the parts alone, not on the order of their fields.
"""

from __future__ import annotations

import hashlib
import json

from pydantic import JsonValue
from typing_extensions import TypedDict  # pydantic cannot read a typing.TypedDict on Python 3.11, and a manifest holds the parts

FORMAT = 2
"""The number of the form of these parts. Loam 0.1 recorded none, and its keys are never those of this version."""
FIRST_FILES = "first_files"
"""The setting that limits path lists. It is in no key, because the files that it leaves are."""


class KeyParts(TypedDict, total=False):
    """Everything that decides an artifact. The key is the sha256 over it.

    The parts of an artifact that a stage made have all fields but `imported`, and `off` only where it is not empty. Those of an artifact
    made from a user's files have format, node, version, code and imported, and with --map the mapping as config. The parts in a manifest can have
    fields that this version does not know; they count in the key too.
    """

    format: int
    """FORMAT; an artifact of Loam 0.1 has none."""
    node: str
    version: int
    """The stage's version."""
    code: str
    """Digest of the stage's code if it ran from a clone, else empty (source_code.key_code)."""
    config: dict[str, JsonValue]
    """The settings without the fields that name files or artifacts."""
    seed: int
    distributions: dict[str, str]
    """Distribution that decides the output -> version."""
    files: dict[str, list[str]]
    """Dotted field -> "<name>=<identity>" or "<identity>" of each external file."""
    packages: dict[str, dict[str, str]]
    """Dotted field -> package -> version."""
    inputs: dict[str, str]
    """Role -> content digest."""
    off: dict[str, str]
    """Node that is off -> why. Only a stage that reads every node has it, and only if a node is off."""
    imported: list[str]
    """"<name>=<identity>" of each file that a user imported."""


def key_of(parts: KeyParts) -> str:
    """Returns the hex sha256 over the parts in canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
