"""What a recipe names outside the home folder, and how it enters a key: by content, never by name or date.

Local files by sha256, remembered by (path, size, mtime_ns, ctime_ns, inode) in <home>/hashes.json, so that a second plan does
not read them again. Remote files (s3://, https://) by ETag and size. Packages by installed version; "stdlib" is this Python.
Cost: reading each new local file once, about 1 GB/s.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from stages.core.errors import RecipeError
from stages.core.files import write_durably
from stages.core.remote import opened
from stages.core.secrets import redact
from stages.core.stage import External, ExternalFile
from stages.core.strictjson import read_object

Remembered = dict[str, tuple[list[int], str]]
GRAIN_NS = 20_000_000  # kernels stamp files with a clock that ticks every 1 to 10 ms


def external_fields(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, External, Sequence[str]]]:
    """(dotted field, mark, values) of every external field of a config, nested models included."""
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        marks = [m for m in info.metadata if isinstance(m, External)] or [
            m for arg in get_args(info.annotation) for m in getattr(arg, "__metadata__", ()) if isinstance(m, External)
        ]
        if marks and value is not None:
            yield prefix + name, marks[0], value
        elif isinstance(value, BaseModel):
            yield from external_fields(value, f"{prefix}{name}.")


def resolve_files(values: Sequence[str], memory: Remembered, where: str) -> tuple[ExternalFile, ...]:
    """Expands globs (sorted) and identifies every file. A pattern that names nothing is a RecipeError."""
    found: list[ExternalFile] = []
    for value in values:
        if "://" in value:
            found.append(_remote(value, where))
            continue
        paths = sorted(p for p in glob.glob(value, recursive=True) if Path(p).is_file())
        if not paths:
            kind = "pattern matches no file" if glob.has_magic(value) else "file does not exist"
            raise RecipeError(f"The {kind}: {value}", where=where, do="Correct the path (relative paths start at the current folder).")
        found.extend(
            ExternalFile(os.fspath(Path(p).absolute()), Path(p).stat().st_size, f"sha256:{remembered_sha256(Path(p), memory)}")
            for p in paths
        )
    return tuple(found)


def package_versions(names: Sequence[str], where: str) -> dict[str, str]:
    """Installed version of each distribution; "stdlib" gives the version of the running Python."""
    versions = {}
    for name in names:
        try:
            versions[name] = platform.python_version() if name == "stdlib" else metadata.version(name)
        except metadata.PackageNotFoundError:
            raise RecipeError(
                f"The package {name!r} is not installed.", where=where, do=f"Install it or take {name!r} out of the recipe."
            ) from None
    return versions


def load_memory(home: Path) -> Remembered:
    """The hash memory of a home; empty when absent or unreadable (it only saves time)."""
    try:
        return {k: (list(v[0]), str(v[1])) for k, v in read_object(home / "hashes.json").items()}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def save_memory(home: Path, memory: Mapping[str, Any]) -> None:
    """Keeps the hashes for the next plan; on a full or read-only disk they are not kept, which costs time and nothing else."""
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        write_durably(home / "hashes.json", json.dumps(memory))


def remembered_sha256(path: Path, memory: Remembered) -> str:
    """Hex sha256 of a file, read only if size, times or inode differ from the remembered ones.

    A file whose times are younger than the grain of the file system's clock (or lie in the future) is not remembered: it could
    change again without showing (git's "racy" entries).
    """
    mark, name = _mark(path), os.fspath(path.absolute())
    if name in memory and memory[name][0] == mark:
        return memory[name][1]
    digest = sha256_file(path)
    if _mark(path) == mark and max(mark[1:3]) < time.time_ns() - GRAIN_NS:
        memory[name] = (mark, digest)
    else:
        memory.pop(name, None)
    return digest


def local_path(file: ExternalFile, folder: Path) -> Path:
    """A path for libraries that read local files only: the file's own, or a copy of a remote one in `folder`."""
    if "://" not in file.uri:
        return Path(file.uri)
    path = folder / file.sha256
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with opened(file.uri) as source, partial.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        os.replace(partial, path)
    return path


def changed(file: ExternalFile, memory: Remembered) -> str:
    """What happened to a local file since it was identified: "changed", "disappeared", or empty. Remote files are not looked at again."""
    if not file.identity.startswith("sha256:"):
        return ""
    try:
        return "" if remembered_sha256(Path(file.uri), memory) == file.sha256 else "changed"
    except FileNotFoundError:
        return "disappeared"


def _mark(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remote(uri: str, where: str) -> ExternalFile:
    """Identity of a remote file: its ETag (or Last-Modified) and size, without reading it."""
    import fsspec

    try:
        file_system, path = fsspec.core.url_to_fs(uri)
        info = file_system.info(path)
    except (OSError, ValueError, ImportError) as error:
        reason = f": {redact(str(error))}" if str(error) not in ("", uri) else "."
        raise RecipeError(f"Cannot reach {uri}{reason}", where=where, do="Check the URI, the network and your credentials.") from None
    tag = info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("Last-Modified") or ""
    size = int(info.get("size") or 0)
    return ExternalFile(uri, size, f"etag:{str(tag).strip(chr(34))}:{size}")
