"""Repeated lines against a count by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.dedup import dedup_rulings
from stages.corpus.dedup.dedup_rulings import by_key, occurrences, repeated, without

LINES = st.lists(st.sampled_from(["alpha  one", "alpha one", "beta two", "x", "", "gamma three"]), max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), LINES), max_size=8), st.integers(1, 3), st.integers(1, 4))
def test_what_is_cut_is_what_occurred_often_enough_before(docs: list[tuple[str, list[str]]], most: int, shards: int) -> None:
    found = [occurrences("\n".join(lines), source, number, "line", 5) for number, (source, lines) in enumerate(docs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup_rulings, "SHARE", 3)
        parts = repeated([by_key(found[shard::shards]) for shard in range(shards)], most)
    cut = {(int(n), int(p)) for r in parts for n, p, rank in zip(r.number, r.part, r.rank, strict=True) if rank >= most}
    seen: Counter[tuple[str, str]] = Counter()
    expected = set()
    for number, (source, lines) in enumerate(docs):
        for part, line in enumerate("\n".join(lines).split("\n")):
            squeezed = " ".join(line.split())
            if len(squeezed) >= 5:
                seen[source, squeezed] += 1
                if seen[source, squeezed] > most:
                    expected.add((number, part))
    assert cut == expected
    times = {int(t) for r in parts for t in r.times}
    assert times == {count for count in seen.values() if count > most}


def test_paragraphs_keep_their_lines_together() -> None:
    text = "one\ntwo\n\nthree\n\none\ntwo"
    keys = occurrences(text, "s", 0, "paragraph", 1)["key"]
    assert keys[0] == keys[2] != keys[1]
    assert without(text, "paragraph", {2}) == "one\ntwo\n\nthree"
    assert len(occurrences("", "s", 0, "line", 1)) == 0 and len(by_key([])) == 0
    assert by_key([np.empty(0, dedup_rulings.OCCURRENCE)]).dtype == dedup_rulings.OCCURRENCE
