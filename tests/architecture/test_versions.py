"""A stage whose code changed has a version entry, or the record says why its output stays the same."""

from __future__ import annotations

import tomllib

import pytest

from stages.core.contract.source_code import RECORD
from tests.architecture import record_code
from tests.architecture.record_code import Lines, recorded, today, unlisted, without_entry
from tests.conftest import PROJECT


def test_no_stage_changed_without_an_entry() -> None:
    changed = unlisted(recorded(), today())
    assert not changed, (
        f"The code of {', '.join(changed)} (its module or what it imports) changed without an entry. "
        'Run `make record-code`, after adding a line to `versions` if the output changes, or with WHY="..." if it does not.'
    )


def line(version: int, code: str, entry: str) -> dict:
    return {"version": version, "code": code, "entry": entry}


def test_a_change_is_seen_needs_a_reason_and_keeps_what_was_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = {"dedup": line(1, "b", "first"), "filter": line(2, "b", "second")}
    before: Lines = {"dedup": [line(1, "a", "first")], "filter": [line(1, "a", "first"), line(1, "c", "the same output: x")]}
    assert without_entry(before, now) == ["dedup"] and unlisted(before, now) == ["dedup", "filter"]
    path = RECORD.with_name("of_this_test.json")
    monkeypatch.setattr(record_code, "RECORD", path)
    monkeypatch.setattr(record_code, "today", lambda: {name: dict(entry) for name, entry in now.items()})
    monkeypatch.setattr(record_code, "recorded", lambda path=path: before if not path.is_file() else recorded(path))
    try:
        assert record_code.main("") == 1 and "dedup: the code changed" in capsys.readouterr().out and not path.exists()
        assert record_code.main("a faster loop") == 0
        wanted = {"dedup": [line(1, "a", "first"), line(1, "b", "the same output: a faster loop")], "filter": [*before["filter"]]}
        assert recorded(path) == wanted and wanted["filter"][-1] == now["filter"] and len(wanted["filter"]) == 3
        assert unlisted(recorded(path), now) == []
        text = path.read_text()
        assert record_code.main("") == 0 and path.read_text() == text, "the same code again changes nothing"
    finally:
        path.unlink(missing_ok=True)


def test_code_of_another_version_is_not_that_of_this_one() -> None:
    assert unlisted({"dedup": [line(1, "a", "first")]}, {"dedup": line(2, "a", "second")}) == ["dedup"]


def test_a_wheel_holds_the_record() -> None:
    data = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert RECORD.name in data["stages.core.contract"] and RECORD.parent == PROJECT / "stages" / "core" / "contract"
