"""Counts the words of texts in a table of fixed size, which is emptied into a file when it is full, and adds up such files.

A word is a row of bytes; a table keeps the bytes of its words one after another, with 64-bit counts. Files are divided by ranges of hashes,
so that a range of all files can be added up in memory.
Guarantee: counts are exact: words are equal if their bytes are. The order of the words follows from the texts and TABLE alone.
Cost: 30 ns per word. A table takes 28 bytes per word and the bytes of its words: at most 72 MiB while it counts.
Source: external aggregation by hash partitioning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stages.corpus.text.native import compiled
from stages.tokens.train_tokenizer.llama_split import word_bounds

TABLE = (1 << 20, 1 << 25)
"""Words, and bytes of words, of a table that counts texts. A longer word is one of a table by itself."""
RANGES = 256
"""Ranges of hashes in a file."""
FILES = ("letters", "lengths", "counts", "ranges")


class CountedWords(NamedTuple):
    """Words with how often they occur. data: uint8, one after another; bounds: int64 [words + 1]; counts: int64 [words]."""

    data: np.ndarray
    bounds: np.ndarray
    counts: np.ndarray


class CountTable(NamedTuple):
    """A hash table of words. slots: int32, number of a word or -1; used: int64 [1], the number of words; the others by word."""

    slots: np.ndarray
    hashes: np.ndarray
    used: np.ndarray
    words: CountedWords


def new_table(words: int, size: int) -> CountTable:
    """Returns an empty table for so many words with so many bytes in all."""
    slots = np.full(1 << max(4, (2 * words - 1).bit_length()), -1, np.int32)
    room = CountedWords(np.empty(size, np.uint8), np.zeros(words + 1, np.int64), np.zeros(words, np.int64))
    return CountTable(slots, np.empty(words, np.uint64), np.zeros(1, np.int64), room)


def counted_words(batches: Iterable[tuple[np.ndarray, np.ndarray]], limits: tuple[int, int] = TABLE) -> Iterator[CountTable]:
    """Yields tables with the words of texts. A word may be in several tables; a table is valid until the next one is asked for.

    Args:
        batches: (the texts in UTF-8, uint8; where each begins, and the end, int64), as `word_bounds` takes them.
        limits: CountedWords and bytes of a table.
    """
    table = new_table(*limits)
    for data, texts in batches:
        bounds = word_bounds(data, texts)
        done, words = 0, len(bounds) - 1
        while done < words:
            done = compiled(_add_words)(CountedWords(data, bounds, np.empty(0, np.int64)), table, done)
            if done == words:
                break
            if not table.used[0]:  # the word is longer than the table has bytes
                table = new_table(limits[0], int(bounds[done + 1] - bounds[done]))
                continue
            yield table
            table = new_table(*limits)
    if table.used[0]:
        yield table


def added_up(parts: Iterable[CountedWords], words: int, size: int) -> CountedWords:
    """Returns each word of the parts once with the sum of its counts, in order of first occurrence.

    Args:
        parts: CountedWords with counts.
        words: Their number in all.
        size: Their bytes in all.
    """
    table = new_table(words, size)
    for part in parts:
        compiled(_add_words)(part, table, 0)
    return contents(table)


def contents(table: CountTable) -> CountedWords:
    """Returns the words of a table, as views of its arrays."""
    used = int(table.used[0])
    bounds = table.words.bounds[: used + 1]
    return CountedWords(table.words.data[: bounds[-1]], bounds, table.words.counts[:used])


def ranges_of(table: CountTable) -> np.ndarray:
    """Returns the range of hashes of each word of a table, int64."""
    return (table.hashes[: table.used[0]] >> np.uint64(56)).astype(np.int64)


def write_words(words: CountedWords, ranges: np.ndarray, folder: Path) -> None:
    """Writes words, ordered by range of hashes. ranges: the range of each word, int64."""
    order = np.argsort(ranges, kind="stable")
    ordered = picked(words, order)
    firsts = np.searchsorted(ranges[order], np.arange(RANGES + 1))
    folder.mkdir(parents=True)
    arrays = (ordered.data, np.diff(ordered.bounds), ordered.counts, np.stack([firsts, ordered.bounds[firsts]]))
    for name, values in zip(FILES, arrays, strict=True):
        np.save(folder / f"{name}.npy", values)


def read_words(folder: Path, first: int = 0, last: int = RANGES) -> CountedWords:
    """Returns the words of a file by `write_words` whose range is at least `first` and below `last`. Reads no others."""
    letters, lengths, counts, ranges = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in FILES)
    (begin, byte), (end, byte_end) = ranges[:, first].tolist(), ranges[:, last].tolist()
    bounds = np.concatenate(([0], np.cumsum(lengths[begin:end])))
    return CountedWords(np.array(letters[byte:byte_end]), bounds, np.array(counts[begin:end]))


def range_sizes(folder: Path) -> np.ndarray:
    """Returns words and bytes of each range of a file by `write_words`: int64 [2, RANGES]."""
    return np.diff(np.load(folder / "ranges.npy"), axis=1)


def picked(words: CountedWords, order: np.ndarray) -> CountedWords:
    """Returns the words with these numbers, in this order."""
    bounds = np.concatenate(([0], np.cumsum(np.diff(words.bounds)[order])))
    data = np.empty(bounds[-1], np.uint8)
    compiled(_copy_words)(words, order, bounds, data)
    return CountedWords(data, bounds, words.counts[order])


def _copy_words(words: CountedWords, order: np.ndarray, bounds: np.ndarray, data: np.ndarray) -> None:
    """Copies the bytes of the chosen words to where `bounds` says."""
    for n in range(len(order)):
        begin = words.bounds[order[n]]
        for i in range(bounds[n + 1] - bounds[n]):
            data[bounds[n] + i] = words.data[begin + i]


def _add_words(words: CountedWords, table: CountTable, first: int) -> int:
    """Counts words in a table. A word without a count of its own counts once.

    Args:
        words: The words; `counts` may be empty.
        table: The table.
        first: Number of the first word to count.

    Returns:
        The number of the first word that was not counted because the table is full, or the number of words.
    """
    data, bounds, counts, known = words.data, words.bounds, words.counts, table.words
    mask, size = len(table.slots) - 1, len(known.counts)
    for w in range(first, len(bounds) - 1):
        begin, length = bounds[w], bounds[w + 1] - bounds[w]
        h = np.uint64(0xCBF29CE484222325)  # FNV-1a, then mixed because its high bits are weak
        for i in range(begin, begin + length):
            h = (h ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
        h = (h ^ h >> np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
        slot = np.int64(h & np.uint64(mask))
        number = np.int64(table.slots[slot])
        while number >= 0:
            same = table.hashes[number] == h and known.bounds[number + 1] - known.bounds[number] == length
            i = 0
            while same and i < length:
                same = known.data[known.bounds[number] + i] == data[begin + i]
                i += 1
            if same:
                break
            slot = (slot + 1) & mask
            number = np.int64(table.slots[slot])
        if number < 0:
            number = table.used[0]
            at = known.bounds[number]
            if number == size or at + length > len(known.data):
                return w
            table.slots[slot] = number
            table.hashes[number] = h
            table.used[0] += 1
            for i in range(length):
                known.data[at + i] = data[begin + i]
            known.bounds[number + 1] = at + length
        known.counts[number] += counts[w] if len(counts) else 1
    return len(bounds) - 1
