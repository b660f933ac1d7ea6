"""Every text file and every text pipe of the product names its encoding, so that no result depends on the user's locale.

ruff's PLW1514 finds only what it knows to be a path; this reads every call. A library that opens a file without an encoding is met by
the last test, which runs commands in an ASCII locale.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from stages.record.contract.source_code import PROJECT

ROOTS = ("flows", "stages", "dashboards")
FOREIGN = ("os", "tarfile")
"""Modules whose `open` opens no text."""
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def opens_text_without_encoding(call: ast.Call) -> bool:
    """Whether a call opens a text file or a text pipe in the encoding of the locale."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    given = {word.arg for word in call.keywords}
    if "encoding" in given:
        return False
    if name in ("read_text", "write_text"):
        return not (name == "read_text" and call.args)  # of a package's metadata
    if name in ("open", "fdopen") and owner not in FOREIGN:
        words = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
        constants = {
            node.value for word in words for node in ast.walk(word) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        return not any("b" in text and set(text) <= set("rwaxb+") for text in constants)
    return name == "TextIOWrapper" or (name in ("run", "Popen", "check_output") and bool({"text", "universal_newlines", "errors"} & given))


@pytest.mark.parametrize(
    "text", ["p.read_text()", 'p.open("a")', "open(p)", "p.write_text(x)", "subprocess.run(w, text=True)", "fdopen(1, 'w')"]
)
def test_such_a_call_is_found(text: str) -> None:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert any(map(opens_text_without_encoding, calls))


def test_the_product_names_every_encoding() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{node.lineno}: {ast.unparse(node)}"
        for root in ROOTS
        for path in sorted((PROJECT / root).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_text_without_encoding(node)
    ]
    assert not found


@pytest.mark.parametrize(
    "words", [["plan", "tiny", "--home", "HOME"], ["settings", "filter"], ["stage", "dedup", "--help"], ["stage", "no…"]]
)
def test_a_command_prints_in_an_ascii_locale(words: list[str], tmp_path: os.PathLike[str]) -> None:
    """What ASCII lacks is printed by its number. Catches: UnicodeEncodeError in the middle of an answer."""
    command = [sys.executable, "-m", "flows.cli", *(str(tmp_path) if word == "HOME" else word for word in words)]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, **ASCII}, capture_output=True, check=False)
    assert done.returncode == (2 if words[-1] == "no…" else 0) and b"Traceback" not in done.stderr, done.stderr
    assert (done.stdout + done.stderr).isascii()
