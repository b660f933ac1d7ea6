"""The key's exact bytes, and what its differences look like: a key that changes with the code would rebuild every home."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from stages.record.contract.declaration import ExternalFile, ExternalFiles, ListedFiles, Packages, Stage
from stages.record.contract.errors import StageError
from stages.record.settings import StageConfig
from stages.record.store import key, key_record
from tests.record.toys import WORDS, run_words


def test_the_key_is_the_sha256_of_canonical_json() -> None:
    text = '{"config":{"a":[1,2.5],"b":null},"node":"ü","seed":7}'
    assert key_record.key_of({"seed": 7, "node": "ü", "config": {"b": None, "a": [1, 2.5]}}) == hashlib.sha256(text.encode()).hexdigest()


def test_differences_come_in_order_and_long_values_are_cut() -> None:
    old = {"z": 1, "config": {"b": {"deep": 1}, "a": "x" * 60, "same": 3}, "gone": True}
    new = {"z": 2, "config": {"b": {"deep": 2}, "a": "y" * 58, "same": 3}, "there": [1]}
    assert key.key_differences(new, old) == [
        f'config.a: "{"x" * 39}… (62 characters) -> "{"y" * 58}"',
        "config.b.deep: 1 -> 2",
        "gone: true -> null",
        "there: null -> [1]",
        "z: 1 -> 2",
    ]
    assert key.key_differences({"config": {"a": 1}}, {"config": 3}) == ['config: 3 -> {"a": 1}']


def test_a_value_of_sixty_characters_is_shown_whole() -> None:
    assert key.key_differences({"a": "x" * 58}, {"a": "y" * 59}) == [f'a: "{"y" * 39}… (61 characters) -> "{"x" * 58}"']


class Inner(StageConfig):
    """A section within a section."""

    packages: Packages = ()
    """Distributions."""
    files: ExternalFiles = ()
    """Files of a section: a field of two levels."""
    number: int = 3
    """A setting."""


class Outer(StageConfig):
    """Two levels of it."""

    files: ExternalFiles = ()
    """Files."""
    inner: Inner = Inner()
    """A section."""
    number: int = 4
    """A setting."""


def test_the_parts_are_what_decides_and_external_fields_only_by_content() -> None:
    stage = Stage("toy", Outer, run_words, {}, "documents", ("one", "two"), ("pyarrow", "duckdb"))
    config = Outer(files=("b.txt", "a.txt"), inner=Inner(packages=("numpy",), files=("c.txt",)))
    files = {"files": [ExternalFile("b.txt", 1, "sha256:bb"), ExternalFile("a.txt", 1, "sha256:aa", "a.txt")]}
    parts = key.key_parts("toy@x", stage, config, 7, files, {"inner.packages": {"z": "1", "numpy": "2"}}, {"r": "d2", "a": "d1"})
    wanted = {
        "node": "toy@x", "version": 2, "config": {"inner": {"number": 3, "packages": ["numpy"]}, "number": 4}, "seed": 7,
        "distributions": {"duckdb": metadata.version("duckdb"), "pyarrow": metadata.version("pyarrow")},
        "files": {"files": ["sha256:bb", "a.txt=sha256:aa"]}, "packages": {"inner.packages": {"numpy": "2", "z": "1"}},
        "inputs": {"a": "d1", "r": "d2"},
    }  # fmt: skip
    assert {name: value for name, value in parts.items() if name in wanted} == wanted


class Limited(StageConfig):
    """Files that a list may name, and how many of them are taken."""

    warcs: ListedFiles = ()
    """Files or lists of files."""
    first_files: int = 2
    """How many."""


class Unlimited(StageConfig):
    """A setting of the same name beside files that no list names."""

    files: ExternalFiles = ()
    """Files."""
    first_files: int = 2
    """A setting as any other."""


@pytest.mark.parametrize(("config", "settings"), [(Limited, {}), (Unlimited, {"first_files": 2})])
def test_how_many_files_of_a_list_are_taken_is_no_part_of_the_key(config: type[StageConfig], settings: dict[str, int]) -> None:
    stage = Stage("toy", config, run_words, {}, "documents", ("one",))
    assert key.key_parts("toy", stage, config(), 7, {}, {}, {})["config"] == settings


def test_a_deciding_distribution_that_is_not_there_is_named(tmp_path: Path) -> None:
    stage = Stage("toy", WORDS.config, run_words, {}, "documents", ("one",), ("no-such-distribution",))
    with pytest.raises(StageError) as caught:
        key.key_parts("toy@x", stage, WORDS.config(), 7, {}, {}, {})
    assert str(caught.value).startswith("The package 'no-such-distribution' is not installed.")
    assert (caught.value.where, caught.value.do) == ("node toy@x", "Run `make setup`.")


def test_nodes_that_are_off_enter_only_the_key_of_a_stage_that_reports_them() -> None:
    stage = Stage("toy", WORDS.config, run_words, {}, "documents", ("one",))
    reports = replace(stage, off={"sft": "no pairs", "dpo": "no model"})
    assert "off" not in key.key_parts("toy", stage, WORDS.config(), 7, {}, {}, {})
    assert key.key_parts("toy", reports, WORDS.config(), 7, {}, {}, {})["off"] == {"dpo": "no model", "sft": "no pairs"}


def test_a_difference_of_the_code_is_said_in_words_and_one_of_a_setting_named_code_by_its_values() -> None:
    old, new = {"code": "", "config": {"code": "a"}}, {"code": "ee", "config": {"code": "b"}}
    setting = 'config.code: "{}" -> "{}"'
    assert key.key_differences(new, old) == ["code differs", setting.format("a", "b")]
    assert key.key_differences(old, new) == ["code differs", setting.format("b", "a")]
