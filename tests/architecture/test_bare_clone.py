"""Every test runs in a bare clone.

Nothing but tests/made/real.py looks outside the repository, and no test skips for another reason than a GPU, a browser or real data that
are missing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.made.real import NOT_HERE, VARIABLE

HELPER = PROJECT / "tests" / "made" / "real.py"
PARTS = ("stages", "flows", "dashboards", "tests", "configs", "data")
KINDS = {".py", ".md", ".yaml", ".yml", ".toml", ".json", ".txt", ""}
REASONS = ("gpu: ", "browser: ", "real variant: ")
SKIPS = {"skip", "skipif", "importorskip", "xfail", "SkipTest", "skipUnless", "skipIf"}
OUTSIDE = re.compile(
    r"""\.\./shared|["']shared["']\s*/|/\s*["']shared["']|shared/corpora|/\s*["']corpora["']|PROJECT\.parent\b|\b(?:DESIGN|FINDINGS)\b"""
)
"""Paths to the folder beside the repository, and names of documents in it."""


def files() -> Iterator[Path]:
    """The project's texts, but for what runs leave in data/ and the two files that must spell what they look for."""
    for path in sorted([*PROJECT.iterdir(), *(path for part in PARTS for path in (PROJECT / part).rglob("*"))]):
        inside = path.relative_to(PROJECT)
        ours = inside.parts[0] != "data" or inside.name == "README.md"
        hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
        if path.is_file() and ours and not hidden and path.suffix in KINDS and path not in (HELPER, Path(__file__).resolve()):
            yield path


def skips(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, way, reason) of each way to skip in a source; the reason is a literal, or the name of a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in SKIPS:
                yield node.lineno, name, ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("skip", "skipif"):
            given = next((word.value for word in node.keywords if word.arg == "reason"), node.args[0] if node.args else None)
            yield node.lineno, node.func.attr, reason_of(given)


def reason_of(given: ast.AST | None) -> str:
    if isinstance(given, ast.Constant):
        return str(given.value)
    return given.id if isinstance(given, ast.Name) else "?"


def unreasonable(source: str) -> list[str]:
    """The skips of a source that have none of the three reasons."""
    found: dict[int, list[tuple[str, str]]] = {}
    for line, way, reason in skips(ast.parse(source)):
        found.setdefault(line, []).append((way, reason))
    return [
        f"{line}: {ways[0][0]}"
        for line, ways in sorted(found.items())
        if not any(reason == "NOT_HERE" or reason.startswith(REASONS) for _, reason in ways)
    ]


def test_only_the_helper_looks_outside_the_repository() -> None:
    found = [f"{path.relative_to(PROJECT)}: {match[0]}" for path in files() for match in OUTSIDE.finditer(path.read_text(encoding="utf-8"))]
    assert not found and OUTSIDE.search(HELPER.read_text())
    read = {path.relative_to(PROJECT).as_posix() for path in files()}
    assert {
        "README.md",
        "Makefile",
        "tests/conftest.py",
        "tests/bench/corpus.py",
        "stages/corpus/extract/stage.py",
        "configs/tiny.yaml",
    } <= read


def test_the_variable_is_read_in_one_place() -> None:
    reads = [path for path in files() if VARIABLE in path.read_text(encoding="utf-8") and path.suffix == ".py"]
    assert not reads


def test_skips_have_one_of_three_reasons() -> None:
    assert NOT_HERE.startswith(REASONS)
    sources = [path for path in files() if path.suffix == ".py" and path.is_relative_to(PROJECT / "tests")]
    assert not [f"{path.relative_to(PROJECT)}:{line}" for path in sources for line in unreasonable(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("pytest.skip('no data')", 1),
        ("pytest.skip()", 1),
        ("skip('x')", 1),
        ("pytest.importorskip('x')", 1),
        ("@pytest.mark.skipif(True, reason='slow')\ndef test(): ...", 1),
        ("@pytest.mark.skip\ndef test(): ...", 1),
        ("@pytest.mark.xfail\ndef test(): ...", 1),
        ("pytest.skip(NOT_HERE)\npytest.skip('gpu: none')", 0),
        ("@pytest.mark.skipif(True, reason='browser: none')\ndef test(): ...", 0),
    ],
)
def test_other_skips_are_noticed(source: str, lines: int) -> None:
    assert len(unreasonable(source)) == lines
