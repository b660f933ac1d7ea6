"""The code digest's exact text: a digest that changes with this module would call all code edited."""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.core.contract import source_code
from stages.core.contract.source_code import canonical, code_digest, git_state, imports_of, reached


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1", "Module(body=[Assign(targets=[Name(ctx=Store(),id='x')],value=Constant(value=1))])"),
        ("f(a, b=None)", "Module(body=[Expr(value=Call(args=[Name(ctx=Load(),id='a')],func=Name(ctx=Load(),id='f'),keywords=[keyword(arg='b',value=Constant())]))])"),
        ("u'x' + u'y'", "Module(body=[Expr(value=BinOp(left=Constant(value='x'),op=Add(),right=Constant(value='y')))])"),
        ("y = 1\n'what y is'\nf('no docstring')", "Module(body=[Assign(targets=[Name(ctx=Store(),id='y')],value=Constant(value=1)),"
         "Expr(value=Call(args=[Constant(value='no docstring')],func=Name(ctx=Load(),id='f')))])"),
        ("class A:\n 'doc'\n x", "Module(body=[ClassDef(body=[Expr(value=Name(ctx=Load(),id='x'))],name='A')])"),
    ],
)  # fmt: skip
def test_a_tree_as_text(source: str, text: str) -> None:
    assert canonical(ast.parse(source)) == text


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of its own; what the module remembers is forgotten before and after."""

    def forget() -> None:
        for value in vars(source_code).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()

    for name, text in {
        "stages/__init__.py": "", "stages/text/__init__.py": "t = 1", "stages/a.py": "def f():\n    from stages.text import deep\n    import stages.b\n",
        "stages/b.py": "import json\nfrom stages.a import f\nfrom json import loads", "stages/text/deep.py": "from flows import c",
        "flows/c.py": "import tests.d", "tests/d.py": "x = 1", "json.py": "never = 1", "stages/unseen.py": "y = 1",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(source_code, "PROJECT", tmp_path)
    forget()
    yield tmp_path
    forget()


def test_what_a_module_imports_and_reaches(project: Path) -> None:
    assert imports_of("stages.a") == {"stages.text", "stages.text.deep", "stages.b"} and imports_of("stages.b") == {"stages.a"}
    assert reached("stages.a") == {"stages.a", "stages.b", "stages.text", "stages.text.deep", "flows.c", "tests.d"}
    assert reached("tests.d") == {"tests.d"}


def test_the_digest_is_over_names_and_trees_in_order(project: Path) -> None:
    names = ["flows.c", "stages.a", "stages.b", "stages.text", "stages.text.deep", "tests.d"]
    files = {name: project.joinpath(*name.split(".")).with_suffix(".py") for name in names} | {
        "stages.text": project / "stages/text/__init__.py"
    }
    lines = [f"{name} {hashlib.sha256(canonical(ast.parse(files[name].read_text())).encode()).hexdigest()}\n" for name in names]
    assert code_digest("stages.a") == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_module_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(AssertionError, match="stages.gone is not a module of this project"):
        code_digest("stages.gone")


def test_the_state_of_git_names_the_commit_and_a_short_hash(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(project), *words], check=True, timeout=60)
    commit = subprocess.run(["git", "-C", str(project), "rev-parse", "HEAD"], check=True, timeout=60, capture_output=True, text=True)
    assert git_state() == {"commit": commit.stdout.strip(), "dirty": ""}
    (project / "new.txt").write_text("new")
    (project / "newer.txt").write_text("newer")
    new = f"new.txt {hashlib.sha256(b'new').hexdigest()}\nnewer.txt {hashlib.sha256(b'newer').hexdigest()}\n"
    assert git_state()["dirty"] == hashlib.sha256(new.encode()).hexdigest()[:12]
    monkeypatch.setenv("PATH", str(project))
    assert git_state() == {"commit": "", "dirty": ""}, "without git there is no state, and no error"


def test_the_content_of_a_new_file_of_a_link_and_of_none(tmp_path: Path) -> None:
    """A file that disappears while the state is read counts as empty."""
    (tmp_path / "file").write_bytes(b"words")
    (tmp_path / "link").symlink_to("some/where")
    assert [source_code._content(tmp_path / name) for name in ("file", "link", "gone")] == [b"words", b"some/where", b""]


def test_the_digests_of_the_modules_are_short_and_in_order_of_their_names(project: Path) -> None:
    found = source_code.module_digests("stages.a")
    assert list(found) == ["flows.c", "stages.a", "stages.b", "stages.text", "stages.text.deep", "tests.d"]
    assert found["tests.d"] == hashlib.sha256(canonical(ast.parse("x = 1")).encode()).hexdigest()[:16]
    assert {len(digest) for digest in found.values()} == {16}


def test_outside_a_git_checkout_there_is_no_state(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    assert git_state() == {"commit": "", "dirty": ""}


def test_only_a_statement_that_is_a_text_is_left_out() -> None:
    kept = [f"Expr(value=Constant(value={value}))" for value in ("Ellipsis", "1")]
    assert canonical(ast.parse("...\n'a text'\n1")) == f"Module(body=[{','.join(kept)}])"
