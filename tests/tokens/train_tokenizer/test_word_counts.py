"""Counted words against collections.Counter, with tables that are too small for all of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from stages.tokens.train_tokenizer.word_counts import (
    RANGES,
    CountedWords,
    added_up,
    contents,
    counted_words,
    range_sizes,
    ranges_of,
    read_words,
    write_words,
)
from tests.tokens.train_tokenizer.hugging_face_trainer import PATTERN

DRAW = random.Random(3)
TEXTS = [" ".join("".join(DRAW.choices("abcé", k=DRAW.randint(1, 5))) for _ in range(60)) for _ in range(40)]


def batches(texts: Sequence[str], size: int = 7) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, len(texts), size):
        data = [text.encode() for text in texts[first : first + size]]
        yield np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)])


def counted(words: CountedWords) -> dict[str, int]:
    spelt = [bytes(words.data[a:b]).decode() for a, b in zip(words.bounds, words.bounds[1:], strict=False)]
    assert len(set(spelt)) == len(spelt), "a word is in the table twice"
    return dict(zip(spelt, words.counts.tolist(), strict=True))


def by_regex(texts: Sequence[str]) -> Counter[str]:
    import regex

    return Counter(word for text in texts for word in regex.findall(PATTERN, text))


@pytest.mark.parametrize(
    ("limits", "least", "texts"), [((1 << 20, 1 << 20), 1, 40), ((100, 1 << 20), 10, 40), ((1 << 20, 300), 10, 40), ((50, 3), 50, 2)]
)
def test_tables_of_any_size_give_the_same_counts(limits: tuple[int, int], least: int, texts: int, tmp_path: Path) -> None:
    """The last limits have less room than a word: it gets a table of its own."""
    folders = []
    for number, table in enumerate(counted_words(batches(TEXTS[:texts]), limits)):
        assert len(contents(table).counts) <= limits[0]
        write_words(contents(table), ranges_of(table), tmp_path / str(number))
        folders.append(tmp_path / str(number))
    assert len(folders) >= least
    found = dict[str, int]()
    for first, last in ((0, 3), (3, 200), (200, RANGES)):
        sizes = sum(range_sizes(folder)[:, first:last].sum(axis=1) for folder in folders)
        part = counted(added_up((read_words(folder, first, last) for folder in folders), *(int(size) for size in np.atleast_1d(sizes))))
        assert not found.keys() & part.keys(), "a word is in two ranges"
        found |= part
    assert found == by_regex(TEXTS[:texts])


def test_counts_have_64_bits() -> None:
    once = CountedWords(np.frombuffer(b"abcab", np.uint8), np.array([0, 2, 3, 5]), np.array([1 << 40, 5, 1 << 40]))
    assert counted(added_up([once, once], 6, 10)) == {"ab": 1 << 42, "c": 10}


def test_no_text_is_no_table() -> None:
    assert list(counted_words(batches([]))) == [] and list(counted_words(batches(["", ""]))) == []
