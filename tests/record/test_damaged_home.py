"""Files of a home that hold garbage: what can be made anew is, everything else is one message with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.record.contract.errors import StageError, VerificationError
from stages.record.store import external, manifest, names, runs
from tests.conftest import run_stage
from tests.record.toys import WORDS

GARBAGE = [
    b"",
    b"[]",
    b"5",
    b"null",
    b"\xff\xfe{",
    b"\x00\x00",
    b"[" * 100_000,
    b'{"a": ',
    b'{"words": NaN}',
    b'{"words": null}',
    b'{"words": 1e999}',
]


@pytest.mark.parametrize("garbage", [*GARBAGE, b'{"/x": {"a": 1}}', b'{"/x": [5, "a"]}', b'{"/x": []}'])
def test_the_memory_of_hashes_only_saves_time(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "hashes.json").write_bytes(garbage)
    assert external.load_memory(tmp_path) == {}
    (tmp_path / "hashes.json").unlink()
    (tmp_path / "hashes.json").mkdir()
    assert external.load_memory(tmp_path) == {}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_lost_counters_are_counted_anew(tmp_path: Path, garbage: bytes) -> None:
    run_stage(WORDS, {}, {}, tmp_path)
    (tmp_path / "counters.json").write_bytes(garbage)
    assert names.next_number(tmp_path, "words") == 2
    (tmp_path / "counters.json").write_bytes(garbage)
    (tmp_path / "artifacts" / "words" / "other").mkdir()
    (tmp_path / "artifacts" / "words" / "other" / "manifest.json").write_bytes(garbage)
    assert names.next_number(tmp_path, "words") == 2


@pytest.mark.parametrize("garbage", [*GARBAGE, b"{}"])
def test_a_given_name_that_cannot_be_read_is_named(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "best.json").write_bytes(garbage)
    with pytest.raises(StageError, match="A given name cannot be read") as caught:
        names.all_names(tmp_path)
    assert "best.json" in caught.value.where


@pytest.mark.parametrize("garbage", [g for g in GARBAGE if not g.startswith(b'{"words": null')])
def test_a_manifest_that_is_no_object_is_damaged(tmp_path: Path, garbage: bytes) -> None:
    artifact = run_stage(WORDS, {}, {}, tmp_path)
    (artifact.path / "manifest.json").write_bytes(garbage)
    with pytest.raises(VerificationError, match="The manifest is damaged: ") as caught:
        manifest.read_artifact(artifact.path)
    assert caught.value.where.endswith("manifest.json")


@pytest.mark.parametrize("garbage", [g for g in GARBAGE if not g.startswith(b'{"words": null')])
@pytest.mark.parametrize("name", ["run.json", "end.json"])
def test_a_record_of_a_run_that_is_no_object_is_a_value_error(tmp_path: Path, garbage: bytes, name: str) -> None:
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    for each in ("run.json", "end.json"):
        (folder / each).write_bytes(b"{}")
    (folder / name).write_bytes(garbage)
    with pytest.raises(ValueError, match="JSON|Expecting|UTF|levels|NaN|range"):
        runs.read_run(tmp_path, "r")
