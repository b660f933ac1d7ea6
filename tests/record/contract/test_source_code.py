"""The code digest: every source that a stage reaches counts, imports inside functions and modules named in strings too."""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.record.contract import source_code
from stages.record.contract.source_code import code_digest, git_state, imports_of, is_clone, key_code, module_digests, reached


def forget() -> None:
    for value in vars(source_code).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of its own; what the module remembers is forgotten before and after."""
    for name, text in {
        "stages/__init__.py": "", "stages/text/__init__.py": "t = 1", "stages/a.py": "def f():\n    from stages.text import deep\n    import stages.b\n",
        "stages/b.py": "import json\nfrom stages.a import f\nfrom json import loads", "stages/text/deep.py": "from flows import c as d",
        "flows/c.py": "START = 'tests.d'", "tests/d.py": "x = 1", "json.py": "never = 1", "stages/unseen.py": "y = 1",
        "stages/lists.py": "from stages.text import (  # why\n    a,\n    deep,\n)\nimport json, stages.b as b\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(source_code, "PROJECT", tmp_path)
    forget()
    yield tmp_path
    forget()


REACHED = ["flows.c", "stages.a", "stages.b", "stages.text", "stages.text.deep", "tests.d"]


def test_what_a_module_imports_and_reaches(project: Path) -> None:
    assert imports_of("stages.a") == {"stages.text", "stages.text.deep", "stages.b"} and imports_of("stages.b") == {"stages.a"}
    assert imports_of("stages.lists") == {"stages.text", "stages.text.deep", "stages.b"}
    assert reached("stages.a") == set(REACHED) and reached("tests.d") == {"tests.d"}


def test_the_imports_of_the_product_are_those_of_its_syntax_trees() -> None:
    """Every import statement and every string that is a dotted name, wherever it stands."""
    for top in ("stages", "flows", "dashboards"):
        for path in (source_code.PROJECT / top).rglob("*.py"):
            module = ".".join(path.relative_to(source_code.PROJECT).with_suffix("").parts).removesuffix(".__init__")
            names: set[str] = set()
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Import):
                    names.update(alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
                    names.add(node.value)
            assert imports_of(module) == {
                name for name in names if all(map(str.isidentifier, name.split("."))) and source_code._path(name)
            }, module


def test_the_digest_is_over_names_and_sources_in_order(project: Path) -> None:
    files = {name: project.joinpath(*name.split(".")).with_suffix(".py") for name in REACHED} | {
        "stages.text": project / "stages/text/__init__.py"
    }
    digests = {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in REACHED}
    lines = "".join(f"{name} {digest}\n" for name, digest in digests.items())
    assert code_digest("stages.a") == hashlib.sha256(lines.encode()).hexdigest()
    found = module_digests("stages.a")
    assert list(found.items()) == [(name, digest[:16]) for name, digest in digests.items()]


def test_a_change_anywhere_in_reach_changes_the_digest_and_nothing_else_does(project: Path) -> None:
    first = code_digest("stages.a")
    (project / "stages/unseen.py").write_text("y = 2")
    forget()
    assert code_digest("stages.a") == first
    (project / "tests/d.py").write_text("x = 1  # a comment")
    forget()
    assert code_digest("stages.a") != first


def test_the_digest_is_in_the_key_of_a_clone_alone(project: Path) -> None:
    assert not is_clone() and key_code("stages.a") == ""
    (project / "pyproject.toml").write_text("")
    assert is_clone() and key_code("stages.a") == code_digest("stages.a")[:16]


def test_a_module_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(AssertionError, match="stages.gone is not a module of this project"):
        code_digest("stages.gone")


def test_a_stage_reaches_what_its_functions_import() -> None:
    assert {"stages.corpus.dedup.stage", "stages.corpus.dedup.minhash", "stages.record.tables.shards"} <= reached(
        "stages.corpus.dedup.stage"
    )
    assert "stages.corpus.dedup.minhash" not in reached("stages.tokens.encode.stage")


def committed(project: Path) -> str:
    """Makes the project a git checkout with one commit, and returns the commit."""
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(project), *words], check=True, timeout=60)
    return subprocess.run(
        ["git", "-C", str(project), "rev-parse", "HEAD"], check=True, timeout=60, capture_output=True, text=True
    ).stdout.strip()


def test_the_state_of_git_names_the_commit_and_a_short_hash(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = committed(project)
    assert git_state() == {"commit": commit, "dirty": ""}
    (project / "new.txt").write_text("new")
    (project / "newer.txt").write_text("newer")
    new = f"new.txt {hashlib.sha256(b'new').hexdigest()}\nnewer.txt {hashlib.sha256(b'newer').hexdigest()}\n"
    assert git_state()["dirty"] == hashlib.sha256(new.encode()).hexdigest()[:12]
    monkeypatch.setenv("PATH", str(project))
    assert git_state() == {"commit": "", "dirty": ""}, "without git there is no state, and no error"


def test_the_dirty_hash_covers_changes_new_files_and_links(project: Path) -> None:
    """A link to a folder, such as a shared .venv, is a new file to git."""
    committed(project)
    states = [git_state()["dirty"]]
    for name, text in (("tests/d.py", "x = 2"), ("new.py", "y = 1"), ("new.py", "y = 2")):
        (project / name).write_text(text)
        states.append(git_state()["dirty"])
    for target in ("flows", "gone"):
        (project / ".venv").unlink(missing_ok=True)
        (project / ".venv").symlink_to(project / target)
        states.append(git_state()["dirty"])
    assert states[0] == "" and len(set(states)) == 6


def test_the_content_of_a_new_file_of_a_link_and_of_none(tmp_path: Path) -> None:
    """A file that disappears while the state is read counts as empty."""
    (tmp_path / "file").write_bytes(b"words")
    (tmp_path / "link").symlink_to("some/where")
    assert [source_code._content(tmp_path / name) for name in ("file", "link", "gone")] == [b"words", b"some/where", b""]


def test_outside_a_git_checkout_there_is_no_state(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    assert git_state() == {"commit": "", "dirty": ""}
