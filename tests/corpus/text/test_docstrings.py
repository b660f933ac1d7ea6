"""Docstrings read by `ast` against those Python itself reports."""

from __future__ import annotations

import inspect
import textwrap

import pytest

from stages.corpus.text.docstrings import PackageNotInstalledError, module_docstrings, read_docstrings, source_files

SOURCE = b'''"""Module text."""
import os

def plain(a, b: int = 2, *args, key: str = "x", **rest) -> None:
    """Plain\\n\\n    indented\\n    """
    def inner():
        """never seen"""

def _private():
    """never seen"""

if os.name:
    def conditional():
        """Conditional."""

class Thing:
    """A thing."""
    def __init__(self, size, *, colour=None):
        """Make it."""
    async def method(self, x):
        r"""Does \\d."""

def plain():
    """A second definition of one name is left out."""
'''


def test_names_kinds_and_signatures() -> None:
    found = [(d.name, d.kind, d.signature, d.text) for d in module_docstrings("p", "m", SOURCE)]
    assert found == [
        ("", "module", "", "Module text."),
        ("plain", "function", "plain(a, b=2, *args, key='x', **rest)", "Plain\n\nindented"),
        ("conditional", "function", "conditional()", "Conditional."),
        ("Thing", "class", "Thing(size, *, colour=None)", "A thing."),
        ("Thing.__init__", "function", "__init__(size, *, colour=None)", "Make it."),
        ("Thing.method", "function", "method(x)", "Does \\d."),
    ]


def test_text_is_what_inspect_reports() -> None:
    path = dict(source_files("stdlib"))["textwrap"]
    docs = {d.name: d.text for d in module_docstrings("stdlib", "textwrap", path.read_bytes())}
    assert docs[""] == inspect.getdoc(textwrap)
    assert docs["dedent"] == inspect.getdoc(textwrap.dedent)
    assert docs["TextWrapper.wrap"] == inspect.getdoc(textwrap.TextWrapper.wrap)


def test_unparsable_source_has_no_docstrings() -> None:
    assert list(module_docstrings("p", "m", b"def broken(:\n")) == []
    assert list(module_docstrings("p", "m", b"x = '\x00'")) == []


def test_order_is_by_module_name_and_tests_are_left_out() -> None:
    modules = [name for name, _ in source_files("numpy")]
    assert modules == sorted(modules)
    assert len(modules) > 50
    assert not [name for name in modules if "test" in name.split(".")[-1].split("_") or ".tests" in name]


def test_lone_surrogates_become_question_marks() -> None:
    (doc,) = module_docstrings("p", "m", b'"""a \\ud800 b"""')
    assert doc.text == "a ? b"


def test_missing_distribution_is_named() -> None:
    with pytest.raises(PackageNotInstalledError, match="'no-such-distribution' is not installed"):
        list(read_docstrings(["no-such-distribution"]))
