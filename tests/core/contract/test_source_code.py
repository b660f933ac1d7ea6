"""The code digest: what changes behaviour changes it, what cannot does not; imports inside functions count."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from stages.core.contract import source_code
from stages.core.contract.source_code import canonical, code_digest, imports_of, reached


def same(a: str, b: str) -> bool:
    return canonical(ast.parse(a)) == canonical(ast.parse(b))


def test_comments_layout_and_docstrings_do_not_count() -> None:
    assert same('def f(x):\n    """Says."""\n    return x  # why\n', "def f(x): return (x)\n")
    assert same(
        "class A:\n    '''Doc.'''\n    x: int = 1\n    '''of a field'''[:0]\n", "class A:\n    x: int = 1\n    '''of a field'''[:0]\n"
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("x = 'a'", "x = b'a'"),
        ("def f(x): return x", "def f(x): return -x"),
        ("def f(x=1): pass", "def f(x=2): pass"),
        ("a < b", "a <= b"),
        ("if a:\n    b\nc", "if a:\n    b\n    c"),
        ("f'{x:2}'", "f'{x:3}'"),
        ("x: int", "x: float"),
        ("import a", "import b"),
        ("def f(): yield", "async def f(): yield"),
    ],
)
def test_what_can_change_behaviour_counts(a: str, b: str) -> None:
    assert not same(a, b)


def test_a_stage_reaches_what_its_functions_import() -> None:
    assert {"stages.dedup", "stages.text.match.minhash", "stages.core.tables.shards"} <= reached("stages.dedup")
    assert "stages.text.match.minhash" not in reached("stages.encode")
    assert "stages.core.contract.errors" in imports_of("stages.core.run.runner")


def test_a_change_anywhere_in_reach_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("a", "from stages import b\nx = b.y"), ("b", "y = 1"), ("c", "z = 1")):
        (tmp_path / "stages").mkdir(exist_ok=True)
        (tmp_path / "stages" / f"{name}.py").write_text(text)
    (tmp_path / "stages" / "__init__.py").write_text("")
    monkeypatch.setattr(source_code, "PROJECT", tmp_path)

    def digest() -> str:
        forget()
        return code_digest("stages.a")

    def forget() -> None:
        for function in (code_digest, reached, imports_of, source_code._parsed):
            function.cache_clear()

    try:
        first = digest()
        (tmp_path / "stages" / "c.py").write_text("z = 2")
        (tmp_path / "stages" / "b.py").write_text("y = 1  # the same")
        assert digest() == first
        (tmp_path / "stages" / "b.py").write_text("y = 2")
        assert digest() != first
    finally:
        forget()


def test_the_dirty_hash_covers_changes_and_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_code, "PROJECT", tmp_path)
    assert source_code.git_state() == {"commit": "", "dirty": ""}
    file = tmp_path / "a.py"
    file.write_text("x = 1")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = source_code.git_state()
    assert len(clean["commit"]) == 40 and clean["dirty"] == ""
    file.write_text("x = 2")
    changed = source_code.git_state()["dirty"]
    (tmp_path / "new.py").write_text("y = 1")
    with_new = source_code.git_state()["dirty"]
    (tmp_path / "new.py").write_text("y = 2")
    assert len({"", changed, with_new, source_code.git_state()["dirty"]}) == 4


def test_new_links_and_what_cannot_be_read_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a folder, such as a shared .venv, is a new file to git."""
    monkeypatch.setattr(source_code, "PROJECT", tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    states = [source_code.git_state()["dirty"]]
    for target in ("one", "two", "gone"):
        (tmp_path / ".venv").unlink(missing_ok=True)
        (tmp_path / ".venv").symlink_to(tmp_path.parent / target)
        (tmp_path.parent / target).mkdir(exist_ok=True) if target != "gone" else None
        states.append(source_code.git_state()["dirty"])
    assert states[0] == "" and len(set(states)) == 4
