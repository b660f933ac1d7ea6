"""Readable names: a number given at birth ("dedup-3", run "tiny-7"), and names that a user gives.

Guarantee: two processes never draw the same number, and a number is not used twice while anything that bears it is there, even
when the counters are lost (they are counted anew from manifests and run records). A given name means one thing at a time.
Layout: <home>/counters.json under a lock; <home>/names/<name>.json per given name, so that the record is complete without the index.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from stages.core.errors import RecipeError, StageError
from stages.core.files import fsync, write_durably
from stages.core.strictjson import read_object

COUNTERS = "counters.json"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
NUMBERED = re.compile(r"(.+)-(\d+)")


def next_number(home: Path, counter: str) -> int:
    """Draws the next number of a counter: 1, 2, 3 … A killed process may leave a gap."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "counters.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in home.glob(f".{COUNTERS}.*"):
            left.unlink()  # a killed writer's: whoever has the lock is the only one
        counters = _load(home)
        counters[counter] = counters.get(counter, 0) + 1
        write_durably(home / COUNTERS, json.dumps(counters, sort_keys=True))
    return counters[counter]


def give_name(home: Path, name: str, target: str, move: bool = False) -> None:
    """Lets `name` mean an artifact id or a run id from now on. Raises RecipeError when it is taken (unless `move`) or no good name."""
    refuse_bad(home, name)
    if not move and all_names(home).get(name) != target:
        refuse_taken(home, name)
    folder = home / "names"
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / f"{name}.json", json.dumps({"target": target})
    if move:
        write_durably(path, text)
        return
    fresh = folder / f".{name}.{os.getpid()}"
    write_durably(fresh, text)
    try:
        os.link(fresh, path)  # unlike a rename, refuses a name that another process gave a moment ago
    except FileExistsError:
        if all_names(home).get(name) != target:
            refuse_taken(home, name)
    finally:
        fresh.unlink()
    fsync(folder)


def refuse_taken(home: Path, name: str) -> None:
    """Raises RecipeError when a name means something already, or cannot be one. The empty name is no name."""
    if not name:
        return
    refuse_bad(home, name)
    if taken := all_names(home).get(name):
        raise RecipeError(
            f"The name {name!r} is taken by {taken}.", do="Choose another, or move it: `loam lineage name TARGET NAME --move`."
        )


def refuse_bad(home: Path, name: str) -> None:
    """Raises RecipeError for what cannot be a name: it looks like a number, a key or a node."""
    if not NAME.fullmatch(name) or NUMBERED.fullmatch(name) or re.fullmatch(r"[0-9a-f]{6,}", name):
        raise RecipeError(
            f"{name!r} cannot be a name.",
            do='Use letters, digits, ".", "_" and "-", a letter first; not what looks like a number ("dedup-3") or a key.',
        )
    if (home / "artifacts" / name).is_dir():
        raise RecipeError(f"{name!r} is a node.", do="Choose a name that no node has.")


def all_names(home: Path) -> dict[str, str]:
    """Every given name and what it means (an artifact id or a run id). Raises StageError for one that cannot be read: gc would
    remove what it keeps."""
    found, damaged = read_names(home)
    if damaged:
        raise StageError("A given name cannot be read.", where=str(damaged[0]), do="Remove the file and give the name again.")
    return found


def read_names(home: Path) -> tuple[dict[str, str], list[Path]]:
    """(name -> target, the files that cannot be read)."""
    found, damaged = {}, []
    for path in sorted((home / "names").glob("[!.]*.json")):
        try:
            found[path.stem] = str(read_object(path)["target"])
        except (ValueError, TypeError, KeyError):
            damaged.append(path)
    return found, damaged


def forget_names(home: Path, target: str) -> None:
    """Removes the names of something that is removed itself."""
    for name, meant in all_names(home).items():
        if meant == target:
            (home / "names" / f"{name}.json").unlink(missing_ok=True)


def _load(home: Path) -> dict[str, int]:
    try:
        return {str(k): int(v) for k, v in read_object(home / COUNTERS).items()}
    except (FileNotFoundError, ValueError, TypeError):
        return _counted(home)


def _counted(home: Path) -> dict[str, int]:
    """The counters as manifests and run records show them."""
    counters: dict[str, int] = {}
    for alias, seq in _born(home):
        counters["run"] = max(counters.get("run", 0), seq)
        if found := NUMBERED.fullmatch(alias):
            counters[found[1]] = max(counters.get(found[1], 0), int(found[2]))
    return counters


def _born(home: Path) -> Iterator[tuple[str, int]]:
    for pattern in ("artifacts/*/*/manifest.json", "runs/*/run.json"):
        for path in home.glob(pattern):
            try:
                record = read_object(path)
                yield str(record.get("alias", "")), int(record.get("seq", 0))
            except (ValueError, TypeError):
                continue  # a damaged manifest is reported where it is used
