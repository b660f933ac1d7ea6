"""Identifies the code that made an artifact: digest of a stage's module with all its project imports, git commit, uncommitted changes.

The digest is computed from the sources (ast) without importing them. It includes imports inside functions, and modules that a string
names, because a process can be started by such a name. It ignores comments, layout and docstrings, those of attributes included.
`stage_code.json` ships with the package. It lists, for each stage and version, the digests of all code that gives this version's output.
Code that it lists enters a key by its version. Edited code enters a key by its own digest.
Cost: about 6 ms per module, once per source and home (`remembered`).
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypedDict

from stages.core.contract.strict_json import read_object
from stages.core.store.files import is_only_read, write_durably

PROJECT = Path(__file__).resolve().parents[3]
RECORD = Path(__file__).with_name("stage_code.json")
DIGITS = 16  # hex digits of a digest, in the record and in a key
ROOMS = ("stages", "flows", "dashboards", "tests")

Parsed = tuple[str, tuple[str, ...]]
"""What is known about a source: the digest of its syntax tree, and every dotted name below ROOMS that could name a module."""


class RecordedCode(TypedDict):
    """An entry of stage_code.json.

    Attributes:
        version: The version of the stage.
        code: The first DIGITS hex digits of the code's digest.
        entry: What changed, or why the output did not change.
    """

    version: int
    code: str
    entry: str


@cache
def recorded() -> dict[str, list[RecordedCode]]:
    """Returns stage -> entries of stage_code.json in the order of recording."""
    found: dict[str, list[RecordedCode]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def edited(stage: str, version: int, *modules: str) -> str:
    """Returns the shortened digest of a stage's code if the record does not list it for this version of the stage, else an empty text."""
    digest = code_digest(*modules)[:DIGITS]
    listed = (line["code"] for line in recorded().get(stage, ()) if line["version"] == version)
    return "" if digest in listed else digest


@cache
def code_digest(*modules: str) -> str:
    """Returns the hex sha256 over the syntax trees of modules and of every project module that they reach, in name order."""
    total = hashlib.sha256()
    for name in sorted(set().union(*map(reached, modules))):
        total.update(f"{name} {_parsed(name)[0]}\n".encode())
    return total.hexdigest()


def module_digests(*modules: str) -> dict[str, str]:
    """Returns module -> shortened digest of its syntax tree, for every module that these modules reach."""
    return {name: _parsed(name)[0][:DIGITS] for name in sorted(set().union(*map(reached, modules)))}


@contextmanager
def remembered(home: Path) -> Iterator[None]:
    """While the block runs, sources that this home has seen before are not parsed again. New results are kept in <home>/code.json.

    They are not kept while the home is only read. A source is found by its sha256, so no date counts. An unreadable file counts as empty. A
    file that cannot be written costs only time.
    """
    known = _known()
    if not known:
        with suppress(OSError, ValueError, TypeError):
            stored = read_object(home / "code.json")
            known.update({source: (str(digest), tuple(map(str, names))) for source, (digest, names) in stored.items()})
    before = len(known)
    yield
    if len(known) > before and home.is_dir() and not is_only_read():
        with suppress(OSError):
            write_durably(home / "code.json", json.dumps(known))


@cache
def reached(module: str) -> frozenset[str]:
    """Returns the project modules that a module imports or names, directly or through others, including the module itself."""
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(imports_of(name))
    return frozenset(seen)


@cache
def imports_of(module: str) -> frozenset[str]:
    """Returns the project modules that a module names, in import statements or in strings, anywhere in its source."""
    return frozenset(name for name in _parsed(module)[1] if _path(name) is not None)


@cache
def _parsed(module: str) -> Parsed:
    source = _source(module)
    known, key = _known(), hashlib.sha256(source).hexdigest()
    if key not in known:
        tree = ast.parse(source)
        names = sorted(name for name in _names(tree) if name.split(".")[0] in ROOMS)
        known[key] = hashlib.sha256(canonical(tree).encode()).hexdigest(), tuple(names)  # equal under every Python; ast.dump is not
    return known[key]


@cache
def _known() -> dict[str, Parsed]:
    """Returns what this process knows about sources, by their sha256."""
    return {}


def _names(tree: ast.Module) -> set[str]:
    """Returns every dotted name that an import statement or a string of the source contains."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.update([node.value] if all(part.isidentifier() for part in node.value.split(".")) else ())
    return found


def canonical(node: object) -> str:
    """Returns a syntax tree as text: node types with their non-empty fields, without positions, docstrings and docstrings of attributes."""
    if isinstance(node, ast.AST):
        inner = ",".join(
            f"{name}={canonical(value)}" for name, value in sorted(ast.iter_fields(node)) if value not in (None, []) and name != "kind"
        )
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{','.join(canonical(item) for item in node if not _is_text(item))}]"
    return repr(node)


def _is_text(node: object) -> bool:
    """Returns whether a statement is only a string: it documents the code before it and does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def git_state() -> dict[str, str]:
    """Returns commit and dirty (first 12 digits of the sha256 of the uncommitted diff and new files, empty when clean).

    Both are empty outside a git checkout.
    """
    commit = _git("rev-parse", "HEAD").strip()
    new = _git("ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1] if commit else []
    diff = _git("diff", "HEAD") + "".join(f"{name} {hashlib.sha256(_content(PROJECT / name)).hexdigest()}\n" for name in new)
    return {"commit": commit, "dirty": hashlib.sha256(diff.encode()).hexdigest()[:12] if diff else ""}


def _content(path: Path) -> bytes:
    """Returns what git would store of a new file; for a link, its target. Empty for a file that is gone or cannot be read."""
    try:
        return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    except OSError:
        return b""


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, check=False, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _path(module: str) -> Path | None:
    if module.split(".")[0] not in ROOMS:
        return None
    base = PROJECT.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _source(module: str) -> bytes:
    path = _path(module)
    assert path is not None, f"{module} is not a module of this project"
    return path.read_bytes()
