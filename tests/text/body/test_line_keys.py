"""The keys of lines: what two lines may differ in and share a key, and what not."""

from __future__ import annotations

import pytest

from stages.text.body.line_keys import cells, has_cells, host_of, key_of, normal, normals, title_of


@pytest.mark.parametrize(
    ("line", "words"),
    [("  • Page 12  of 30", "page 0 of 0"), ("3. STRASSE Straße", "strasse strasse"), ("•", "•"), ("1.5 kg", "0.0 kg"), ("v2.", "v0."), ("a\u00a0b", "a b")],
)  # fmt: skip
def test_numbers_case_signs_and_spaces_of_a_line_do_not_count(line: str, words: str) -> None:
    assert normal(line) == words


def test_the_keys_of_a_text_are_those_of_its_lines_that_are_not_empty() -> None:
    text = "One 1\n\n\n  • Two\nthree\n"
    assert normals(text) == [normal(line) for line in text.split("\n") if line] == ["one 0", "two", "three"]
    assert normals("") == [] and normal("") == ""


def test_two_hosts_share_no_key() -> None:
    one, other = key_of("a.example"), key_of("b.example")
    assert one(["home", "about"]) == one(["home", "about"]) and len({*one(["home", "about"]), *other(["home", "about"])}) == 4
    assert all(0 <= key < 2**64 for key in one(["", "\ud800"]))


def test_a_row_is_counted_by_its_cells_too() -> None:
    assert cells("Previous | Up\t\tNext 2 » [Index]") == ["previous", "up", "next 0", "index"]
    assert has_cells("a\tb") and has_cells("a | b") and has_cells("a » b") and not has_cells("a|b c")


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://User:x@Docs.Example:8080/a?b", "docs.example:8080"), ("http://[::1/", ""), ("", ""), ("no url", ""), ("file:///a/b", "")],
)
def test_the_host_of_a_url(url: str, host: str) -> None:
    assert host_of(url) == host


def test_the_title_is_the_first_of_the_highest_headings_outside_frames() -> None:
    text = "Site\n\nSmall\nThe Title ¶\nSecond"
    assert title_of(text, [1, 2, 1, 1], [True, False, False, False]) == "the title"
    assert title_of(text, [1, 2, 0, 2], [True, False, False, False]) == "small"
    assert title_of(text, [0, 0, 0, 0], [False] * 4) == "" == title_of("", [], [])
