"""Which code made an artifact: digest of a stage's module with all it imports from the project, git commit, dirty diff.

Found by reading the sources (ast), imports inside functions included; nothing is imported. Cost: a few milliseconds a stage.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


@cache
def code_digest(module: str) -> str:
    """Hex sha256 over the sources of a module and of every project module it reaches, in name order."""
    total = hashlib.sha256()
    for name in sorted(reached(module)):
        total.update(name.encode() + b"\0" + _source(name) + b"\0")
    return total.hexdigest()


@cache
def reached(module: str) -> frozenset[str]:
    """The project modules that a module imports, directly or through others, itself included."""
    seen, queue = set(), [module]
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(imports_of(name))
    return frozenset(seen)


@cache
def imports_of(module: str) -> frozenset[str]:
    """The project modules a module names in import statements anywhere in its source."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{a.name}" for a in node.names)
    return frozenset(n for n in found if _path(n) is not None)


def git_state() -> dict[str, str]:
    """commit and dirty (sha256 of the uncommitted diff, empty when clean); both empty outside a git checkout."""
    commit = _git("rev-parse", "HEAD").strip()
    diff = _git("diff", "HEAD") + _git("ls-files", "--others", "--exclude-standard") if commit else ""
    return {"commit": commit, "dirty": hashlib.sha256(diff.encode()).hexdigest()[:12] if diff else ""}


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, check=False, errors="replace")
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _path(module: str) -> Path | None:
    if module.split(".")[0] not in ("stages", "flows", "dashboards", "tests"):
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
