"""A stage whose code changed has a version entry, or the record says why its output stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import record_code
from tests.house.record_code import recorded, today, without_entry


def test_no_stage_changed_without_an_entry() -> None:
    changed = [
        name
        for name, new in today().items()
        if {k: recorded().get(name, {}).get(k) for k in ("version", "code")} != {k: new[k] for k in ("version", "code")}
    ]
    assert not changed, (
        f"The code of {', '.join(changed)} (its module or what it imports) changed without an entry. "
        'Run `make record-code`, after adding a line to `versions` if the output changes, or with WHY="..." if it does not.'
    )


def test_a_change_is_seen_and_needs_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = {"dedup": {"version": 1, "entry": "first", "code": "b"}, "filter": {"version": 2, "entry": "second", "code": "b"}}
    before = {"dedup": {"version": 1, "entry": "first", "code": "a"}, "filter": {"version": 1, "entry": "first", "code": "a"}}
    assert without_entry(before, now) == ["dedup"] and without_entry(now, now) == []
    path = record_code.PROJECT / "tests" / "golden" / "of_this_test.json"
    monkeypatch.setattr(record_code, "RECORD", path)
    monkeypatch.setattr(record_code, "today", lambda: {name: dict(entry) for name, entry in now.items()})
    monkeypatch.setattr(record_code, "recorded", lambda: before)
    try:
        assert record_code.main("") == 1 and "dedup: the code changed" in capsys.readouterr().out and not path.exists()
        assert record_code.main("a faster loop") == 0
        assert recorded(path) == {"dedup": {"version": 1, "entry": "the same output: a faster loop", "code": "b"}, "filter": now["filter"]}
    finally:
        path.unlink(missing_ok=True)
