"""Readable names: a number given at birth ("dedup-3", run "tiny-7"), and names that a user gives; and the one rule for all names.

The rule (RULE) holds for whatever becomes the name of a file, of a folder or of something that commands take: recipes, given names,
sources, benchmark tasks. ASCII only: file systems disagree about what is the same Unicode name, and look-alikes, marks of direction
and control characters would make one name pass for another. What is joined to a path goes through `path_part`, whatever it claims.
Guarantee: two processes never draw the same number, and a number is not used twice while anything that bears it is there, even
when the counters are lost (they are counted anew from manifests and run records). A given name means one thing at a time.
Layout: <home>/counters.json under a lock; <home>/names/<name>.json per given name, so that the record is complete without the index.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from stages.core.contract.errors import RecipeError, StageError
from stages.core.contract.strict_json import read_object
from stages.core.store.files import fsync, write_durably
from stages.processes import lock_file

COUNTERS = "counters.json"
MAX_CHARS = 64
RULE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_CHARS - 1}}}")
PART = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._@-]{0,149}"
)  # a node ("evaluate@sft"), a run's id (date, recipe, digits), a folder of an artifact
NUMBERED = re.compile(r"(.+)-(\d+)")


def name_fault(name: str) -> str:
    """What keeps a text from being a name, as the end of a sentence that begins with it; empty when it is one."""
    if not name:
        return "is empty"
    if found := next((c for c in name if not re.fullmatch(r"[A-Za-z0-9._-]", c)), ""):
        return f"holds {found!a} (U+{ord(found):04X})"
    if not re.fullmatch(r"[A-Za-z0-9]", name[0]):
        return f"begins with {name[0]!r}"
    return f"has {len(name)} characters" if len(name) > MAX_CHARS else ""


def refuse_name(name: object, what: str, *, where: str = "", rename: str = "") -> str:
    """The name itself; RecipeError when it breaks the rule. what: "The recipe's name"; rename: where it is changed, if not there."""
    fault = name_fault(name) if isinstance(name, str) else f"is no text ({type(name).__name__})"
    if fault:
        shown = ascii(name) if len(ascii(name)) <= 80 else f"{ascii(name)[:77]}..."
        raise RecipeError(
            f"{what} {shown} {fault}.",
            where=where,
            do=f'{rename or "Name it"} {near_name(str(name))!r}: letters a-z, digits, ".", "_" and "-", a letter or digit first, at most '
            f"{MAX_CHARS}." + ("" if isinstance(name, str) else " Quote it, so that YAML reads a text."),
        )
    return str(name)


def near_name(text: str) -> str:
    """A name that would do, near to a text that would not."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).lstrip("._-")[:MAX_CHARS].rstrip("._-") or "mine"


def path_part(text: str) -> str:
    """The text itself, which is about to become one step of a path below the home. Raises StageError for what would lead elsewhere."""
    if not PART.fullmatch(text):
        raise StageError(
            "A record names something that cannot be a file or folder of this home.",
            where=ascii(text)[:200],
            do="Nothing was read or written. `loam lineage verify` names damaged records.",
        )
    return text


def next_number(home: Path, counter: str) -> int:
    """Draws the next number of a counter: 1, 2, 3 … A killed process may leave a gap."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "counters.lock").open("a") as lock:
        lock_file(lock.fileno(), wait=True)
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
    if not RULE.fullmatch(name) or not name[0].isalpha() or NUMBERED.fullmatch(name) or re.fullmatch(r"[0-9a-f]{6,}", name):
        raise RecipeError(
            f"{ascii(name)[:80]} cannot be a name.",
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
            target = read_object(path)["target"]
            whole = RULE.fullmatch(path.stem) and all(PART.fullmatch(part) for part in target.split("/")) and target.count("/") <= 1
        except (ValueError, TypeError, KeyError, AttributeError, OSError):
            whole = False
        if whole:
            found[path.stem] = target
        else:
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
                born = str(record.get("alias", "")), int(record.get("seq", 0))
            except (ValueError, TypeError):
                continue  # a damaged manifest is reported where it is used
            yield born
