"""Published artifacts found by key and id: cases that single changed lines of core/store/manifest outlived."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from stages.core.contract.errors import RecipeError
from stages.core.store import manifest
from stages.core.store.names import give_name
from tests.conftest import run_stage
from tests.core.toys import WORDS


def test_two_keys_with_the_same_first_twelve_digits_are_two_keys(tmp_path: Path) -> None:
    """The folder holds twelve digits of 64: another key's artifact may lie beside one's own as if it were its second rebuild."""
    own = run_stage(WORDS, {}, {}, tmp_path)
    key = str(own.manifest["key"])
    other = key[:12] + "".join("1" if digit == "0" else "0" for digit in key[12:])
    beside = own.path.with_name(f"{own.path.name}.2")
    shutil.copytree(own.path, beside)
    (beside / manifest.NAME).write_text(json.dumps(json.loads((own.path / manifest.NAME).read_text()) | {"key": other}))
    assert [a.path for a in manifest.find_artifacts(tmp_path, "words", key)] == [own.path]
    assert [a.path for a in manifest.find_artifacts(tmp_path, "words", other)] == [beside]


def test_rebuilds_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    own = run_stage(WORDS, {}, {}, tmp_path)
    numbered = [own.path.with_name(f"{own.path.name}.{number}") for number in (2, 10)]
    for folder in numbered:
        shutil.copytree(own.path, folder)
    assert [a.path for a in manifest.find_artifacts(tmp_path, "words", str(own.manifest["key"]))] == [own.path, *numbered]


def test_stamps_are_in_order_of_node_and_folder_whatever_the_disk_lists_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listed(path), reverse=True))
    for name in ("b/2", "b/1", "a/3", "a/1"):
        (tmp_path / "artifacts" / name).mkdir(parents=True)
        (tmp_path / "artifacts" / name / manifest.NAME).touch()
    (tmp_path / "artifacts" / "a file").touch()
    opened = len(listed("/proc/self/fd"))
    assert list(manifest.stamps(tmp_path)) == ["a/1", "a/3", "b/1", "b/2"]
    assert len(listed("/proc/self/fd")) == opened


def test_what_is_no_rebuild_is_not_found(tmp_path: Path) -> None:
    """A folder without a manifest is what an interrupted removal leaves; a folder with another name is a copy made by hand."""
    own = run_stage(WORDS, {}, {}, tmp_path)
    own.path.with_name(f"{own.path.name}.2").mkdir()
    shutil.copytree(own.path, own.path.with_name(f"{own.path.name}-copy"))
    assert [a.path for a in manifest.find_artifacts(tmp_path, "words", str(own.manifest["key"]))] == [own.path]


def test_an_artifact_is_named_by_alias_id_folder_or_given_name(tmp_path: Path) -> None:
    first, second = (run_stage(WORDS, {"words": [word]}, {}, tmp_path) for word in ("one", "two"))
    give_name(tmp_path, "best", manifest.artifact_id(first))
    named = {
        "words-1": first, "words-2": second, manifest.artifact_id(second): second, str(first.path): first, "best": first,
    }  # fmt: skip
    for name, artifact in named.items():
        assert manifest.named_artifact(tmp_path, name, "a setting").path == artifact.path, name
    with pytest.raises(RecipeError, match="There is no artifact 'words-3'") as caught:
        manifest.named_artifact(tmp_path, "words-3", "dedup.against")
    assert caught.value.where == "dedup.against"
