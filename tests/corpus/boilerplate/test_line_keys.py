"""The keys of lines: what two lines may differ in and share a key, and what not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.boilerplate.line_keys import cells, cells_of_rows, host_of, key_of, normal, normals, title_of

BLANKS = "".join(chr(code) for code in range(0x110000) if chr(code).isspace())
PIECES = st.sampled_from(
    [*BLANKS, "0", "1", "12", "007", "•", "1.", "0.", "9", "a", "É", "ß", "İ", "\u0661", "\u200b", "\u2010", "中", "\ud800", "\0", "word"]
)


@pytest.mark.parametrize(
    ("line", "words"),
    [("  • Page 12  of 30", "page 0 of 0"), ("3. STRASSE Straße", "strasse strasse"), ("•", "•"), ("1.5 kg", "0.0 kg"), ("v2.", "v0."), ("a\u00a0b", "a b")],
)  # fmt: skip
def test_numbers_case_signs_and_spaces_of_a_line_do_not_count(line: str, words: str) -> None:
    assert normal(line) == words


def test_the_keys_of_a_text_are_those_of_its_lines_that_are_not_empty() -> None:
    text = "One 1\n\n\n  • Two\nthree\n"
    assert [line.decode() for line in normals(text)] == [normal(line) for line in text.split("\n") if line] == ["one 0", "two", "three"]
    assert normals("") == [] and normal("") == "" and normals(" ") == [b""]


@settings(deadline=None)  # the first call compiles
@given(st.lists(PIECES, max_size=30).map("".join) | st.text())
def test_words_are_those_of_split_for_any_text(text: str) -> None:
    """Catches: a blank that the compiled loop does not know, a number that goes on across a blank, a sign taken for a word."""
    expected = []
    for line in filter(None, text.split("\n")):
        words = re.sub("[0-9]+", "0", line.casefold()).split()
        expected.append(" ".join(words[1:] if len(words) > 1 and words[0] in ("•", "0.") else words).encode("utf-8", "surrogatepass"))
    assert normals(text) == expected


def test_two_hosts_share_no_key() -> None:
    one, other = key_of("a.example"), key_of("b.example")
    assert one([b"home", b"about"]) == one([b"home", b"about"]) and len({*one([b"home", b"about"]), *other([b"home", b"about"])}) == 4
    assert all(0 <= key < 2**64 for key in one([b"", *normals("\ud800")]))


def test_a_row_is_counted_by_its_cells_too() -> None:
    assert cells("Previous | Up\t\tNext 2 » [Index]") == [b"previous", b"up", b"next 0", b"index"]
    assert cells_of_rows("a\tb\nno row\nc | d\ne » f\ng|h c") == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert cells_of_rows("no row") == [] == cells_of_rows("")


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://User:x@Docs.Example:8080/a?b", "docs.example:8080"), ("http://[::1/", ""), ("", ""), ("no url", ""), ("file:///a/b", "")],
)
def test_the_host_of_a_url(url: str, host: str) -> None:
    assert host_of(url) == host


def test_the_title_is_the_first_of_the_highest_headings_outside_frames() -> None:
    text = "Site\n\nSmall\nThe Title ¶\nSecond"
    for levels, frames, title in (
        ([1, 2, 1, 1], [True, False, False, False], "the title"),
        ([1, 2, 0, 2], [True, False, False, False], "small"),
        ([0, 0, 0, 0], [False] * 4, ""),
    ):
        assert title_of(text, np.array(levels), np.array(frames)) == title
    assert title_of("", np.zeros(0, np.int32), np.zeros(0, np.bool_)) == ""
