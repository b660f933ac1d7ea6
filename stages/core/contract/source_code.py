"""Which code made an artifact: digest of a stage's module with all it imports from the project, git commit, dirty diff.

Found by reading the sources (ast), imports inside functions included, and modules that are named in a string (a process is started
by such a name); nothing is imported. What cannot change behaviour does not count: comments, layout, docstrings.
`stage_code.json`, which ships with the package, lists for each stage and version the digests of all code that gives this version's
output. Code that it lists enters a key by its version; edited code by its own digest.
Cost: about 6 ms a module, once per source and home (`remembered`).
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
from typing import Any

from stages.core.contract.strict_json import read_object
from stages.core.store.files import write_durably

PROJECT = Path(__file__).resolve().parents[3]
RECORD = Path(__file__).with_name("stage_code.json")
DIGITS = 16  # of a digest, in the record and in a key
ROOMS = ("stages", "flows", "dashboards", "tests")

Parsed = tuple[str, tuple[str, ...]]
"""What is known of a source: the digest of its syntax tree, and every name below ROOMS that it names as a module may be named."""


@cache
def recorded() -> dict[str, list[dict[str, Any]]]:
    """stage -> lines in the order in which they were recorded: version, code (digest), entry (what changed, or why the output did not)."""
    found: dict[str, list[dict[str, Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def edited(stage: str, version: int, *modules: str) -> str:
    """The digest of a stage's code, shortened, where the record does not list it for this version of the stage; else empty."""
    digest = code_digest(*modules)[:DIGITS]
    listed = (line["code"] for line in recorded().get(stage, ()) if line["version"] == version)
    return "" if digest in listed else digest


@cache
def code_digest(*modules: str) -> str:
    """Hex sha256 over the syntax trees of modules and of every project module they reach, in name order."""
    total = hashlib.sha256()
    for name in sorted(set().union(*map(reached, modules))):
        total.update(f"{name} {_parsed(name)[0]}\n".encode())
    return total.hexdigest()


def module_digests(*modules: str) -> dict[str, str]:
    """module -> digest of its syntax tree, shortened, of all that these modules reach."""
    return {name: _parsed(name)[0][:DIGITS] for name in sorted(set().union(*map(reached, modules)))}


@contextmanager
def remembered(home: Path) -> Iterator[None]:
    """While the block runs, sources that this home has seen before are not parsed again; new ones are kept in <home>/code.json.

    By the sha256 of the source, so that no date counts. An unreadable file is none, one that cannot be written costs only time.
    """
    known = _known()
    if not known:
        with suppress(OSError, ValueError, TypeError):
            stored = read_object(home / "code.json")
            known.update({source: (str(digest), tuple(map(str, names))) for source, (digest, names) in stored.items()})
    before = len(known)
    yield
    if len(known) > before and home.is_dir():
        with suppress(OSError):
            write_durably(home / "code.json", json.dumps(known))


@cache
def reached(module: str) -> frozenset[str]:
    """The project modules that a module imports or names, directly or through others, itself included."""
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(imports_of(name))
    return frozenset(seen)


@cache
def imports_of(module: str) -> frozenset[str]:
    """The project modules a module names in import statements, or in strings that are such a name, anywhere in its source."""
    return frozenset(name for name in _parsed(module)[1] if _path(name) is not None)


@cache
def _parsed(module: str) -> Parsed:
    source = _source(module)
    known, key = _known(), hashlib.sha256(source).hexdigest()
    if key not in known:
        tree = ast.parse(source)
        names = sorted(name for name in _names(tree) if name.split(".")[0] in ROOMS)
        known[key] = hashlib.sha256(canonical(tree).encode()).hexdigest(), tuple(names)  # the same under every Python (ast.dump is not)
    return known[key]


@cache
def _known() -> dict[str, Parsed]:
    """What this process knows of sources, by their sha256."""
    return {}


def _names(tree: ast.Module) -> set[str]:
    """Every dotted name in a source that an import statement or a string names."""
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
    """A syntax tree as text: node types with their non-empty fields, without docstrings and positions."""
    if isinstance(node, ast.AST):
        fields = dict(ast.iter_fields(node))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            fields["body"] = node.body[1:]
        inner = ",".join(
            f"{name}={canonical(value)}" for name, value in sorted(fields.items()) if value not in (None, []) and name != "kind"
        )
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{','.join(canonical(item) for item in node)}]"
    return repr(node)


def git_state() -> dict[str, str]:
    """commit and dirty (sha256 of the uncommitted diff and new files, empty when clean); both empty outside a git checkout."""
    commit = _git("rev-parse", "HEAD").strip()
    new = _git("ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1] if commit else []
    diff = _git("diff", "HEAD") + "".join(f"{name} {hashlib.sha256(_content(PROJECT / name)).hexdigest()}\n" for name in new)
    return {"commit": commit, "dirty": hashlib.sha256(diff.encode()).hexdigest()[:12] if diff else ""}


def _content(path: Path) -> bytes:
    """What git would store of a new file: of a link where it leads to. Empty for a file that cannot be read or is gone again."""
    try:
        return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    except OSError:
        return b""


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, check=False, errors="replace")
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
