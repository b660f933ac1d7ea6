"""Compiled loops against datatrove's functions on the words themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.corpus.filter import word_stats
from stages.corpus.text.native import compiled

WORDS = ["a", "b", "ab", "ba", "aa", "the", "of", "!"]


def table(words: list[str]) -> tuple[np.ndarray, ...]:
    """Returns (ids, characters, hashes, powers) of words, ids in order of first sight."""
    different = list(dict.fromkeys(words))
    ids = np.array([different.index(word) for word in words], np.int32)
    chars = np.array([len(word) for word in different], np.int32)
    points = np.frombuffer("".join(different).encode("utf-32-le"), np.uint32)
    return ids, chars, *compiled(word_stats.hash_words)(points, chars)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
@example(["ab", "a"] * 9)
@example([])
def test_n_grams_are_datatroves(words: list[str]) -> None:
    from datatrove.pipeline.filters.gopher_repetition_filter import find_all_duplicate, find_top_duplicate, get_n_grams

    ids, chars, hashes, powers = table(words)
    top = compiled(word_stats.top_gram_chars)(ids, chars, 4)
    for n in (2, 3, 4):
        grams = get_n_grams(words, n)
        assert top[n] == (find_top_duplicate(grams) if grams else 0)
    for n in (1, 2, 3, 5, 10):
        assert compiled(word_stats.repeated_gram_chars)(ids, chars, hashes, powers, n) == find_all_duplicate(words, n)


def test_of_equally_frequent_n_grams_the_first_counts() -> None:
    ids, chars, _, _ = table(["a", "bbb", "x", "cccc", "d"])
    assert compiled(word_stats.top_gram_chars)(ids, chars, 2).tolist() == [0, 0, 5]


def test_repeated_n_grams_are_joined_without_separators() -> None:
    ids, chars, hashes, powers = table(["ab", "a", "x", "a", "ba"])
    assert compiled(word_stats.repeated_gram_chars)(ids, chars, hashes, powers, 2) == 3


def test_counts_by_kind() -> None:
    words = np.array([0, 1, 2, 0, 1], np.int32)
    chars, flags, stop = np.array([3, 1, 4], np.int32), np.array([2, 1, 0], np.uint8), np.array([1, -1, 0], np.int16)
    assert word_stats.count_kinds(words, chars, flags, stop, np.array([True, True]), 1, 2) == (3, 10, 2, 2)
    assert word_stats.count_kinds(words, chars, flags, stop, np.array([False, True]), 1, 2) == (3, 10, 2, 1)
