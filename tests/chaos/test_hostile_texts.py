"""Texts made to cost the filter much: processor seconds by construct, for 100,000 characters and for four times as many."""

from __future__ import annotations

import time

import pytest

from stages.filter import FilterConfig
from stages.text.quality import judge

pytestmark = pytest.mark.chaos
UNITS = ("(", "[", "'", "@", "-", ".", "_.", "a.", "1.", "a-", "a:@", "a@", "a@a.", "+1 ", "+1 555 ", "111-111-", "1.1.1.1", ":)", "(a", "#", "&amp;", "…",
         "Ã©", "â€™", "ï¿½", "\u0301", "a\u0301", "\x92", "\x80\x81", "\x1b[", "東", "東，", "😀", "\u3000", "x\n", "[edit", "a://", "aA.")  # fmt: skip
SIZE, MOST_S_PER_MB = 100_000, 20.0


@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_length_of_a_text(unit: str) -> None:
    tools = judge.make_tools(FilterConfig.model_validate({"url": {"enabled": False}}), judge.ToolFiles())
    judge.judge("Some words (of a text).", ("en", 0.9), "http://x.org", None, tools)
    for size in (SIZE, 4 * SIZE):
        for text in (unit * (size // len(unit)), unit * (size // len(unit)) + " @ x", unit * (size // len(unit)) + "x"):
            began = time.process_time()
            judge.judge(text, ("en", 0.9), "http://x.org", None, tools)
            seconds = time.process_time() - began
            print(ascii(unit), size, f"{seconds:.2f}")
            assert seconds < MOST_S_PER_MB * size / 1e6 + 0.3
