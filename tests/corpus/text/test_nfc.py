"""NFC of runs of marks, against Python's."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from stages.corpus.text.nfc import LONG_RUN, compose

MARKS = "\u0301\u0323\u0344\u0327\u0345\u05b0\u064b\u302a\u0f71\u0f73\u0f75"


@given(st.text("aé\u1e69 \u0390", max_size=2), st.text(MARKS, min_size=1, max_size=9), st.text("b\u0323\u0301\u00e5", max_size=9))
def test_it_is_nfc(before: str, marks: str, behind: str) -> None:
    for text in (before + marks + behind, before + marks * LONG_RUN + behind, (before + marks * LONG_RUN + behind) * 2):
        assert compose(text) == unicodedata.normalize("NFC", text)


def test_a_long_run_of_marks_in_the_wrong_order_has_an_end() -> None:
    """Python's own takes 20 minutes for it."""
    text = "a" + "\u0301" * 500_000 + "\u0323" * 500_000
    assert compose(text) == "\u1ea1" + "\u0323" * 499_999 + "\u0301" * 500_000
