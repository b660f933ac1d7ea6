from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.examples.items.held_out import (
    Answer,
    Described,
    answer_of,
    answer_row,
    answers,
    halves,
    hold_out,
    normalised,
    read_described,
    wrong_answers,
)

PACKAGE = "pydantic"


@pytest.fixture(scope="module")
def read() -> tuple[list[Described], Counter[str]]:
    return read_described([PACKAGE])


def test_answers_occur_once_and_have_the_words_asked_for(read: tuple[list[Described], Counter[str]]) -> None:
    found = answers(*read, 5, 30)
    every = Counter(normalised(s) for d in read[0] for s in d.sentences)
    assert len(found) > 100
    for answer in found:
        assert every[answer.key] == 1 and 5 <= len(answer.key.split()) <= 30
        assert answer.of.sentences[answer.ordinal] == answer.text
        assert answer.text[0].isupper() and ">>>" not in answer.text and "``" not in answer.text


def test_code_lists_and_titles_are_not_prose() -> None:
    from stages.corpus.text.docstrings import Docstring
    from stages.examples.items.held_out import _paragraphs

    text = "Return the sum.\n\nIt may\nwrap.\n\n>>> f(1)\n2\n\nParameters\n----------\nx : int\n    The thing.\n\n- one item.\n\n    An indented quote."
    blocks = list(_paragraphs(Docstring("p", "m", "f", "function", "f()", text)))
    assert [t for t, prose in blocks if prose] == ["Return the sum.", "It may wrap."]


def test_held_out_answers_are_stable_when_others_are_added(read: tuple[list[Described], Counter[str]]) -> None:
    found = answers(*read, 5, 30)
    few = {a.key for a in hold_out(found[::2], 20, seed=1)}
    many = [a.key for a in hold_out(found, 20, seed=1)]
    half = {a.key for a in found[::2]}
    assert {key for key in many if key in half} <= few
    assert [a.key for a in hold_out(found[::-1], 20, seed=1)] == many
    assert {a.key for a in hold_out(found, 20, seed=2)} != set(many)
    assert all(a.ordinal == 0 and a.of.kind != "module" for a in hold_out(found, 20, seed=1))


def test_answers_survive_a_table(read: tuple[list[Described], Counter[str]]) -> None:
    for answer in answers(*read, 5, 30)[:50]:
        back = answer_of(answer_row(answer, "1.0"))
        assert (back.text, back.key, back.ordinal, back.of.name) == (answer.text, answer.key, answer.ordinal, answer.of.name)
        assert back.of.sentences == (answer.of.sentences[: answer.of.lead] if answer.ordinal == 0 else ())


@settings(deadline=None)
@given(st.lists(st.text("abc ", min_size=1, max_size=12).filter(lambda t: t.split()), min_size=1, max_size=40))
def test_wrong_answers_differ_from_the_right_one_and_from_each_other(texts: list[str]) -> None:
    keys = [f"{i}" for i in range(len(texts))]
    different = {normalised(t) for t in texts}
    for i, wrong in enumerate(wrong_answers(texts, keys, 3, seed=0)):
        words = [normalised(texts[j]) for j in wrong]
        assert len(set(words)) == len(words) == min(3, len(different) - 1)
        assert normalised(texts[i]) not in words


def test_wrong_answers_are_of_near_length() -> None:
    texts = [f"{'word ' * (1 + i // 30)}{i}" for i in range(600)]
    gaps = [abs(len(texts[i]) - len(texts[j])) for i, wrong in enumerate(wrong_answers(texts, texts, 3, 0)) for j in wrong]
    assert max(gaps) <= 8


@settings(deadline=None)
@given(st.lists(st.text("abc.", min_size=1, max_size=5), min_size=2, max_size=20))
def test_halves_join_to_the_sentence(words: list[str]) -> None:
    first, second = halves(" ".join(words))
    assert f"{first} {second}" == " ".join(words)
    assert 0 <= len(first.split()) - len(second.split()) <= 1


def test_repeated_sentences_are_no_answers() -> None:
    twice = [Described("p", n, "function", ("Return the sum of both arguments.",), 1) for n in ("a", "b")]
    once = Described("p", "c", "function", ("Return the product of both arguments.",), 1)
    counts = Counter(normalised(s) for d in [*twice, once] for s in d.sentences)
    assert answers([*twice, once], counts, 5, 30) == [Answer(once, 0, once.sentences[0], "return the product of both arguments")]
