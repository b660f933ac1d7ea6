"""Which code made an artifact: digest of a stage's module with all it imports from the project, git commit, dirty diff.

Found by reading the sources (ast), imports inside functions included; nothing is imported. What cannot change behaviour does not
count: comments, layout, docstrings. Cost: about 10 ms a module, once per process.
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
    """Hex sha256 over the syntax trees of a module and of every project module it reaches, in name order."""
    total = hashlib.sha256()
    for name in sorted(reached(module)):
        total.update(f"{name} {_tree_digest(name)}\n".encode())
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


@cache
def _tree_digest(module: str) -> str:
    """Hex sha256 of a module's syntax tree, the same under every Python that can parse it (ast.dump is not)."""
    return hashlib.sha256(canonical(ast.parse(_source(module))).encode()).hexdigest()


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
    diff = _git("diff", "HEAD") + "".join(f"{name} {hashlib.sha256((PROJECT / name).read_bytes()).hexdigest()}\n" for name in new)
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
