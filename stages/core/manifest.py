"""The manifest: the truth about an artifact, written last, before the folder is renamed into place.

Guarantee: a folder below artifacts/ with a manifest.json is whole; its files were fsynced and have the recorded sha256.
Layout: <home>/artifacts/<node>/<first 12 digits of the key>/, a further realisation of the same key with ".2", ".3" behind it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.core import names
from stages.core.errors import RecipeError, StageError, VerificationError
from stages.core.external import sha256_file
from stages.core.files import fsync
from stages.core.stage import Artifact
from stages.core.strictjson import BadJsonError, read_object

NAME = "manifest.json"


def read_artifact(path: Path) -> Artifact:
    """The artifact in a folder. Raises VerificationError when its manifest cannot be read."""
    try:
        return Artifact(path, read_object(path / NAME))
    except BadJsonError as error:
        raise VerificationError(
            f"The manifest is damaged: {error}.", where=str(path / NAME), do="Remove the folder and run the recipe again."
        ) from None


def artifact_id(artifact: Artifact) -> str:
    """ "<node>/<folder>": the readable name by which lineage and the command line know an artifact."""
    return f"{artifact.manifest['node']}/{artifact.path.name}"


def find_artifacts(home: Path, node: str, key: str) -> list[Artifact]:
    """All published realisations of a key, the newest last."""
    root = home / "artifacts" / node
    folders = [p for p in root.glob(f"{key[:12]}*") if (p / NAME).is_file()]
    found = [read_artifact(p) for p in sorted(folders, key=_realisation)]
    return [a for a in found if a.manifest["key"] == key]


def stamps(home: Path) -> dict[str, int]:
    """Every published artifact of a home by its id, with the time of its manifest (ns), in order of node and folder."""
    found = {}
    root = home / "artifacts"
    for node in sorted(os.listdir(root)) if root.is_dir() else ():
        try:
            handle = os.open(root / node, os.O_RDONLY | os.O_DIRECTORY)  # a path relative to it is found faster
        except NotADirectoryError:
            continue
        try:
            for folder in sorted(os.listdir(handle)):
                with suppress(FileNotFoundError, NotADirectoryError):  # a folder whose manifest gc has taken away
                    found[f"{node}/{folder}"] = os.stat(f"{folder}/{NAME}", dir_fd=handle).st_mtime_ns
        finally:
            os.close(handle)
    return found


def named_artifact(home: Path, value: str, where: str) -> Artifact:
    """A published artifact by its folder, its name ("dedup-3", or one that was given), or "<node>/<folder>" of this home."""
    meant = names.all_names(home).get(value, value)
    for folder in (Path(meant).expanduser(), home / "artifacts" / meant):
        if (folder / NAME).is_file():
            return read_artifact(folder.absolute())
    for path in sorted((home / "artifacts" / value.rpartition("-")[0]).glob(f"*/{NAME}")):
        if (artifact := read_artifact(path.parent)).manifest["alias"] == value:
            return artifact
    raise RecipeError(
        f"There is no artifact {value!r}.",
        where=where,
        do='Name one of this home ("dedup-3"; `loam lineage sql "SELECT alias FROM artifact"` lists them) or give the folder of one.',
    )


def list_files(folder: Path) -> list[dict[str, Any]]:
    """path, bytes, sha256 of every file below a folder in path order; each is fsynced."""
    entries = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        entries.append({"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size, "sha256": digest})
    return entries


def content_digest(files: Sequence[Mapping[str, Any]], identity: Sequence[str] = ()) -> str:
    """Hex sha256 over sorted (path, bytes, sha256) of an artifact's files, or of those that `identity` names."""
    chosen = [f for f in files if not identity or any(f["path"] == i or f["path"].startswith(f"{i}/") for i in identity)]
    lines = sorted(json.dumps([f["path"], f["bytes"], f["sha256"]]) for f in chosen)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def publish(home: Path, out: Path, manifest: Mapping[str, Any]) -> Artifact:
    """Writes the manifest into `out`, makes it durable and renames the folder into place."""
    root = home / "artifacts" / str(manifest["node"])
    root.mkdir(parents=True, exist_ok=True)
    try:
        text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise StageError(
            f"A result of {manifest['node']} is no finite number.",
            where=str(out),
            do="Look at the metrics of the node; nothing was published.",
        ) from None
    with (out / NAME).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    for folder in [*(p for p in out.rglob("*") if p.is_dir()), out]:
        fsync(folder)
    stem = str(manifest["key"])[:12]
    number = max([_realisation(p) for p in root.glob(f"{stem}*")], default=0) + 1  # not a gap: the newest has the highest
    final = root / (stem + (f".{number}" if number > 1 else ""))
    os.rename(out, final)
    fsync(root)
    return read_artifact(final)


def verify(artifact: Artifact) -> list[str]:
    """What is wrong with an artifact's files, one line each; empty when every recorded byte is there."""
    wrong = []
    recorded = {f["path"]: f for f in artifact.manifest["files"]}
    for name, entry in recorded.items():
        path = artifact.path / name
        if not path.is_file():
            wrong.append(f"{path}: missing")
        elif path.stat().st_size != entry["bytes"]:
            wrong.append(f"{path}: {path.stat().st_size} bytes, recorded {entry['bytes']}")
        elif sha256_file(path) != entry["sha256"]:
            wrong.append(f"{path}: bytes differ from the recorded sha256")
    for path in sorted(artifact.path.rglob("*")):
        if path.is_file() and path.name != NAME and path.relative_to(artifact.path).as_posix() not in recorded:
            wrong.append(f"{path}: not in the manifest")
    return wrong


def _realisation(path: Path) -> int:
    return int(path.suffix[1:] or 1)
