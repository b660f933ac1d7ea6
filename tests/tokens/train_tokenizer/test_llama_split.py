"""The compiled split against the pre-tokenizer of Hugging Face tokenizers, on every character and on hostile texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from stages.tokens.train_tokenizer.llama_split import LLAMA3_SPLIT, word_bounds
from tests.tokens.train_tokenizer.hugging_face_trainer import PATTERN

THEIRS = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
HOSTILE = " \n\r\t'sStTlLrReEvVdm1234a.,-é漢\u00a0\u2028\u0085٣ſẞK\u3000😀\u0301\x1c\x0b"
POINTS = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x32000, 7), *range(0xE0000, 0xE0200, 3), 0x10FFFF]


def words(*texts: str) -> list[str]:
    data = [text.encode() for text in texts]
    flat = np.frombuffer(b"".join(data), np.uint8)
    bounds = word_bounds(flat, np.cumsum([0, *map(len, data)])).tolist()
    return [bytes(flat[begin:end]).decode() for begin, end in zip(bounds, bounds[1:], strict=False)]


def theirs(text: str) -> list[str]:
    return [word for word, _ in THEIRS.pre_tokenize_str(text)]


def test_the_pattern_is_that_of_llama_3() -> None:
    assert LLAMA3_SPLIT == PATTERN


@pytest.mark.parametrize("form", ["a{}b", "'{}  {}."])
def test_every_character_is_split_as_by_hugging_face(form: str) -> None:
    for first in range(0, len(POINTS), 5_000):
        text = "|".join(form.replace("{}", chr(point)) for point in POINTS[first : first + 5_000])
        assert words(text) == theirs(text)


@settings(max_examples=400)
@given(st.text(st.sampled_from(HOSTILE), max_size=16))
def test_hostile_texts_are_split_as_by_hugging_face(text: str) -> None:
    assert words(text) == theirs(text)


@given(st.text())
def test_any_text_is_split_as_by_hugging_face(text: str) -> None:
    assert words(text) == theirs(text)


def test_a_word_ends_with_its_text() -> None:
    assert words("one two  ", "'s", "\n", "", "\nthree") == ["one", " two", "  ", "'s", "\n", "\n", "three"]
    assert words() == [] and words("") == []
