"""A side that fails is named with its reason at once, and the other sides go on."""

from __future__ import annotations

from pathlib import Path

from tests.bench.train.rounds import measure
from tests.bench.train.sides import LOAM, PRODUCT


def test_a_side_that_fails_is_told_and_the_others_make_their_rounds(tmp_path: Path) -> None:
    told: dict[str, str] = {}
    runs = measure(tmp_path, [LOAM, PRODUCT], "fp32", [1, 1, 2], told.__setitem__)
    assert list(told) == [LOAM] and "job-fp32.json" in told[LOAM], "the folder has no job"
    assert list(runs) == [PRODUCT] and [len(one.steps) for one in runs[PRODUCT].rounds] == [1, 2]
