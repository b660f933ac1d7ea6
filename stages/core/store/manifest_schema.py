"""Checks a manifest.json: every field with its type and range, and the fields that must agree with each other.

Guarantee: a manifest that `parsed` returns has every field that the rest of Loam reads. Its values fit into the index (numbers of 63 bits,
finite floats, Unicode text), its names stay inside their folder, and no key occurs twice. Everything else raises a ValueError that names
the field, and no other exception. `contradictions` is for manifests of other homes: facts that they state twice must agree, also the key.
Cost: one pass over the text; about 0.1 ms for a manifest of ten files.
Source: the fields are those that runner and import write.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from stages.core.contract.side_table import NAME as TABLE_NAME
from stages.core.contract.strict_json import deepest, parse
from stages.core.store.key import key_of
from stages.core.store.names import NUMBERED, PART, name_fault

MAX_BYTES = 256 << 20  # a manifest of a million files
MAX_DEPTH = 40
MAX_CHARS = 1 << 20  # of one string
MANIFEST = "manifest.json"
STAGE_PARTS = {"node", "version", "config", "seed", "distributions", "files", "packages", "inputs"}
FILE_PARTS = {"node", "version", "imported"}  # of an artifact made from a user's files


def _checked(test: Any, what: str) -> Any:
    def check(value: Any) -> Any:
        if not test(value):
            raise ValueError(what)
        return value

    return AfterValidator(check)


def _is_time(text: str) -> bool:
    try:
        return len(text) >= 19 and text[10:11] in "T " and datetime.datetime.fromisoformat(text).year > 1
    except ValueError:
        return False


def _is_path(text: str) -> bool:
    """Whether a path is relative, normalised and inside the folder. Control characters would make it look like another path."""
    parts = text.split("/")
    plain = len(text) <= 1024 and text.isprintable() and "\\" not in text
    return plain and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts) and text != MANIFEST


Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Signed = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Part = Annotated[str, _checked(PART.fullmatch, "is no name of a node, run or folder")]
RunId = Annotated[str, _checked(lambda text: not text or PART.fullmatch(text), "is no id of a run")]
Alias = Annotated[str, _checked(lambda text: PART.fullmatch(text) and NUMBERED.fullmatch(text), 'is no numbered name such as "dedup-3"')]
Kind = Annotated[str, _checked(lambda text: not name_fault(text), "is no name of a kind")]
TableName = Annotated[str, _checked(TABLE_NAME.fullmatch, "is no name of a table or view")]
Time = Annotated[str, _checked(_is_time, "Invalid isoformat string")]
FilePath = Annotated[str, _checked(_is_path, "is no plain path inside the artifact")]
StageName = Annotated[str, _checked(lambda text: not name_fault(text), "is no name of a stage")]
Scalar = Annotated[bool | int | float | str | None, _checked(lambda v: not isinstance(v, int) or abs(v) < 2**63, "is out of range")]


class _Record(BaseModel):
    """Strict: no text is converted to a number. Fields that a later version adds are allowed; `_walk` limits their values."""

    model_config = ConfigDict(strict=True, extra="allow")


class _File(_Record):
    path: FilePath
    bytes: Count
    sha256: Hex64


class _Input(_Record):
    artifact: Annotated[str, _checked(lambda text: _is_artifact_id(text), "is no node/folder")]
    node: Part
    key: Hex64
    digest: Hex64


class _External(_Record):
    uri: str
    bytes: Signed
    identity: str
    name: str


class _Code(_Record):
    commit: str
    dirty: str
    stage: str


class _Environment(_Record):
    python: str
    platform: str
    hardware: dict[str, Any]


class _RecordCounts(_Record):
    unit: str
    rows_in: Count
    kept: Count
    changed: Count
    dropped: dict[str, Count]
    chars_in: Count
    chars_out: Count
    chars_removed: Signed
    chars_dropped: dict[str, Count]


class _Imported(_Record):
    provenance: str


class _Manifest(_Record):
    node: Part
    stage: StageName
    kind: Kind
    key: Hex64
    digest: Hex64
    identity: list[str]
    version: Annotated[int, Field(ge=1, lt=2**31)]
    version_notes: list[str]
    config: dict[str, Any]
    seed: Count
    key_parts: dict[str, Any]
    inputs: dict[str, _Input]
    external: dict[str, list[_External]]
    rows: Count
    tokens: Count
    record_counts: _RecordCounts | None
    summary: dict[str, Scalar]
    files: list[_File]
    tables: dict[TableName, TableName]
    bytes: Count
    imported: _Imported | None = None
    run_id: RunId
    code: _Code
    runtime: dict[str, Any]
    environment: _Environment
    started: Time
    ended: Time
    alias: Alias


def parsed(data: bytes) -> dict[str, Any]:
    """Returns the manifest in a file's bytes. Raises ValueError that names the field."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    value = parse(data)
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    if len(data) > MAX_CHARS or deepest(data, MAX_DEPTH) > MAX_DEPTH:  # else nothing in it can be too long or too deep
        _walk(value, "", 0)
    try:
        _Manifest.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("bool", "int", "float", "str"))[:200]
        if first["type"] == "missing":
            raise ValueError(f"it has no {place!r}") from None
        raise ValueError(f"{place} is {_short(first['input'])}: {first['msg'].removeprefix('Value error, ')}") from None
    paths = [file["path"] for file in value["files"]]
    folders = {path[:cut] for path in paths for cut in range(len(path)) if path[cut] == "/"}
    twice = next((path for path, count in _counts(paths).items() if count > 1 or path in folders), None)
    if twice is not None:
        raise ValueError(f"files names {twice!r} twice")
    return value


def misplaced(manifest: Mapping[str, Any], node: str, folder: str) -> str:
    """Returns what is wrong with a manifest's place in a home, as a sentence. Empty when node and key agree with the folder."""
    if manifest["node"] != node:
        return f"it is of the node {manifest['node']}"
    key, dot, number = folder.partition(".")
    if key != manifest["key"][:12] or (dot and not number.isdigit()):
        return f"its key {manifest['key'][:12]} is not that of its folder"
    return ""


def contradictions(manifest: Mapping[str, Any]) -> list[str]:
    """Returns what a checked manifest states twice with different values, one phrase each. Our own runner never writes such a manifest."""
    parts = manifest["key_parts"]
    if missing := sorted((FILE_PARTS if "imported" in parts else STAGE_PARTS) - set(parts)):
        return [f"key_parts has no {missing[0]}"]
    pairs: dict[str, tuple[Any, Any]] = {
        "key": (manifest["key"], key_of(parts)),
        "node": (manifest["node"], parts.get("node")),
        "version": (manifest["version"], parts.get("version")),
        "version_notes": (len(manifest["version_notes"]), manifest["version"]),
        "bytes": (manifest["bytes"], sum(file["bytes"] for file in manifest["files"])),
        "identity": (_usual_identity(manifest), True),
    }
    external = {field: [_entry(file) for file in files] for field, files in manifest["external"].items()}
    if "imported" in parts:  # made from a user's files, which alone decide the artifact
        pairs |= {
            "imported": ("imported" in manifest, True),
            "external": (external, {"imported": parts["imported"]}),
            "inputs": (manifest["inputs"], {}),
        }
    else:
        pairs |= {
            "config": (_without(manifest["config"], [*_mapping(parts.get("files"))]), parts.get("config")),
            "seed": (manifest["seed"], parts.get("seed")),
            "inputs": ({role: parent["digest"] for role, parent in manifest["inputs"].items()}, parts.get("inputs")),
            "external": (external, parts.get("files")),
        }
    return [f"{name} is not that of its key_parts" if name in ("key", "node", "version", "config", "seed", "inputs", "external")
            else f"{name} contradicts the rest" for name, (one, other) in pairs.items() if one != other]  # fmt: skip


def _usual_identity(manifest: Mapping[str, Any]) -> bool:
    """Whether the digest counts the files that a stage of the kind counts. A digest over another small file would not identify the rest."""
    given = set(manifest["identity"])
    if manifest["kind"] == "warc":
        return given == {"identity.jsonl"}
    return {"checkpoint", "model.json", "steps"} <= given if manifest["kind"] == "checkpoint" else not given


def _entry(file: Mapping[str, Any]) -> str:
    """Returns an external file as key.key_parts writes it."""
    return f"{file['name']}={file['identity']}" if file["name"] else str(file["identity"])


def _without(config: Mapping[str, Any], fields: Sequence[str]) -> Any:
    """Returns a config without its fields of files ("lang_model"), because the key parts hold those by content."""
    left = json.loads(json.dumps(config))
    for field in fields:
        *above, last = str(field).split(".")
        here = left
        for name in above:
            here = here.get(name) if isinstance(here, dict) else None
        if isinstance(here, dict):
            here.pop(last, None)
    return left


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_artifact_id(text: str) -> bool:
    node, slash, folder = text.partition("/")
    return bool(slash and PART.fullmatch(node) and PART.fullmatch(folder))


def _walk(value: Any, place: str, depth: int) -> None:
    """Raises ValueError for a value that is nested too deeply or too long. strict_json has already refused invalid numbers and text."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{place[:80]} is nested too deeply")
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise ValueError(f"{place[:80]} is too long ({len(value):,} characters)")
    elif isinstance(value, dict):
        for name, item in value.items():
            _walk(name, f"a key of {place}", depth)
            _walk(item, f"{place}.{name}" if place else name, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _walk(item, place, depth + 1)


def _counts(names: Sequence[str]) -> dict[str, int]:
    from collections import Counter

    return Counter(names)


def _short(value: Any) -> str:
    text = ascii(value) if not isinstance(value, dict | list) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
