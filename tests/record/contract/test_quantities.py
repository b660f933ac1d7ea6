"""Durations, sizes and amounts of computation as text."""

from __future__ import annotations

from stages.record.contract.quantities import about_text, duration_text, flops_text, size_text


def test_durations_are_text_in_two_units() -> None:
    seconds = (0.04, 59.4, 59.6, 245, 3600, 7384, 190_000)
    assert [duration_text(s) for s in seconds] == ["0.0 s", "59.4 s", "1 min 0 s", "4 min 5 s", "1 h 0 min", "2 h 3 min", "2 d 4 h"]


def test_an_expected_duration_has_one_unit() -> None:
    seconds = (0, 59, 60, 89, 95, 5399, 5400, 100_000, 130_000, 90_000_000)
    expected = ["about 1 min", "about 1 min", "about 2 min", "about 90 min", "about 2 h", "about 28 h", "about 2 d", "about 1,042 d"]
    assert [about_text(s) for s in seconds] == ["less than a minute"] * 2 + expected


def test_sizes_and_computation_have_a_readable_unit() -> None:
    assert [size_text(n) for n in (12, 12_000, 3_400_000_000)] == ["12 bytes", "12.0 KB", "3.4 GB"]
    assert [flops_text(n) for n in (0, 999, 1.16e16, 3.8e25)] == ["0 FLOP", "999 FLOP", "11.6 PFLOP", "38 YFLOP"]
