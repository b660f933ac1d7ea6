"""The words of long chunks, against spaCy's own; that they take no square of time is in tests/chaos/test_hostile_texts.py."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.filter.word_split import SAME_USER, SPACY_CHARS, USER, ChunkSplitter, WordSplitter

PARTS = [".", "..", "(", ")", ":", ":)", "'", "'s", "a", "I", "S", "A.", "km", "1", "$", "%", "+", "-", "@", "/", "http://", "x.org", "can't",
         "don't", "cannot", "8)", "10a.m.", "U.S.", "=", "_", "*", "#", '"', "…", "o.O", "°C.", "Â©", "€", "\u200d", "😀", "e.g.", ",", "!", "[",
         "¯\\(ツ)/¯", "(*_*)", "</3", "^_^", ">.<", "C++", "\u0301", "東", "，", "—"]  # fmt: skip


@cache
def splitters() -> tuple[WordSplitter, ChunkSplitter]:
    own = WordSplitter()
    return own, ChunkSplitter(own._spacy.tokenizer)


def spacys(chunk: str) -> list[str]:
    pipeline = splitters()[0]._spacy
    with pipeline.memory_zone():
        return [token.text for token in pipeline.tokenizer(chunk)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=8), st.lists(st.sampled_from(PARTS), max_size=30), st.integers(1, 12))
def test_words_are_spacys(some: list[str], others: list[str], times: int) -> None:
    for chunk in ("".join(some) * times, "".join(some * times + others), "".join(others + some * times)):
        assert splitters()[1].words(chunk) == spacys(chunk)


def test_special_cases_are_spacys_wherever_they_stand() -> None:
    """Behind a prefix, before a suffix, in the middle, and spelled by words that were split apart."""
    for special in splitters()[0]._spacy.tokenizer.rules:
        for before, behind in product(("", "(", "a-"), ("", ")", "...", "-a")):
            chunk = before + special + behind
            if not any(map(str.isspace, chunk)):
                assert splitters()[1].words(chunk) == spacys(chunk)


@pytest.mark.parametrize(
    "chunk", ["." * 200, "." * 200 + "x", "x" + "." * 200, "a" + "." * 200 + "B", "(" * 40 + "." * 90 + ")" * 40, "…" * 99 + "..."]
)
def test_runs_longer_than_the_window(chunk: str) -> None:
    assert splitters()[1].words(chunk) == spacys(chunk)


def test_urls_are_spacys() -> None:
    from spacy.lang.tokenizer_exceptions import URL_PATTERN

    assert USER in URL_PATTERN and USER != SAME_USER
    for user, host, rest in product(
        ("", "me@", "me:pw@", "a:b:c@d@", ":@", "@"), ("x.org", "1.2.3.4", "10.1.1.1", "é.com", "x"), ("", ":80", "/a(b)", ":x")
    ):
        for chunk in (user + host + rest, "https://" + user + host + rest, "(" + user + host + rest + ")."):
            assert splitters()[1].words(chunk) == spacys(chunk)


def test_a_long_chunk_of_a_text_is_split_like_a_short_one() -> None:
    own = splitters()[0]
    for count in (SPACY_CHARS - 1, SPACY_CHARS, SPACY_CHARS + 1, 300):
        text = f"See {'(' * count} and {'x' * count}: {'can’t,' * count} don't{')' * count}"
        spelled = [list(own._ids)[i] for i in own.words(text)]
        assert spelled == [word for chunk in text.split() for word in spacys(chunk)]


def test_a_chunk_that_spacy_never_ends_has_its_words() -> None:
    own = splitters()[1]
    assert own.words("(" * 100_000 + "x") == [*"(" * 100_000, "x"]
    assert own.words("a" + "." * 100_000) == ["a", "." * 100_000]


def test_a_rule_for_whole_words_is_not_asked_about_endless_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """French has such a rule; it is looked at after every prefix."""
    import spacy

    monkeypatch.setattr("stages.corpus.filter.word_split.TOKEN_CHARS", 100)
    tokenizer = spacy.blank("fr").tokenizer
    own = ChunkSplitter(tokenizer)
    for chunk in ("aujourd'hui", "(peut-être)", "l'avant-garde,", "d'", "(" * 40 + "grand-mère" + ")" * 40):
        assert own.words(chunk) == [token.text for token in tokenizer(chunk)]
    asked: list[int] = []
    monkeypatch.setattr(own, "_token", lambda text: asked.append(len(text)))
    own.words("(" * 300)
    assert max(asked) == 100
