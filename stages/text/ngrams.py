"""Word n-grams of benchmark items, and where they occur in a text: the ground of decontamination and of the contamination report.

Words are runs of `\\w` in Unicode, casefolded; punctuation, markup and line breaks do not hide a match. An item text of n words
or more is indexed by each of its word n-grams, a shorter one as a whole (not below `min_words`, where ordinary phrases begin).
Guarantee: exact; a hash only proposes, the words themselves decide. Spans are character offsets into the text as given.
Cost: about 10 MB/s per core to search, 20 bytes per n-gram in memory. Source: n = 13 words is GPT-3's rule (Brown et al. 2020,
appendix C).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORD = re.compile(r"\w+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying modulo 2**64 loses nothing (golden ratio, Knuth 6.4)


class EmptyIndexError(ValueError):
    """No item text had enough words: a search would find nothing and everything would look clean."""


@dataclass(frozen=True)
class Match:
    """An item found in a text: characters start..end, and the matching words, casefolded and joined by one space."""

    task: str
    item_id: str
    start: int
    end: int
    words: str


@dataclass(frozen=True)
class Grams:
    """The indexed n-grams of one length, sorted by hash; `position` is where the n-gram's words begin in `Index.word_ids`."""

    length: int
    hashes: np.ndarray  # uint64 [grams]
    position: np.ndarray  # int64 [grams]
    item: np.ndarray  # int32 [grams]


@dataclass(frozen=True)
class Index:
    """What `find` looks for. `short_texts` counts item texts below min_words: they cannot be looked for."""

    n: int
    min_words: int
    items: tuple[tuple[str, str], ...]  # (task, item_id)
    texts: int
    short_texts: int
    vocabulary: dict[str, int]  # word -> id from 1; 0 is any other word
    word_ids: np.ndarray  # int32, the words of all indexed texts, one after the other
    grams: tuple[Grams, ...]  # ascending length


def normalise_words(text: str) -> list[str]:
    """The words that matching sees.

    >>> normalise_words("Don't  STOP: see <b>`x_1`</b>")
    ['don', 't', 'stop', 'see', 'b', 'x_1', 'b']
    """
    return [word.casefold() for word in WORD.findall(text)]


def build_index(items: Iterable[tuple[str, str, Sequence[str]]], n: int = 13, min_words: int = 5) -> Index:
    """An index of (task, item_id, texts). Raises EmptyIndexError when nothing could be indexed.

    n: words per n-gram. min_words: a text shorter than n words is matched whole, but not below this many words.
    """
    names: list[tuple[str, str]] = []
    vocabulary: dict[str, int] = {}
    pieces: list[np.ndarray] = []
    starts: dict[int, list[tuple[int, int, int]]] = {}  # gram length -> (first position, number of grams, item)
    total = texts_seen = short = 0
    for task, item_id, texts in items:
        names.append((task, item_id))
        for text in texts:
            texts_seen += 1
            words = normalise_words(text)
            if len(words) < min(min_words, n):
                short += 1
                continue
            pieces.append(np.array([vocabulary.setdefault(w, len(vocabulary) + 1) for w in words], np.int32))
            length = min(n, len(words))
            starts.setdefault(length, []).append((total, len(words) - length + 1, len(names) - 1))
            total += len(words)
    if not pieces:
        raise EmptyIndexError(
            f"the index of benchmark n-grams is empty: none of the {texts_seen} texts of {len(names)} items has {min(min_words, n)} words or more"
        )
    word_ids = np.concatenate(pieces)
    grams = tuple(_grams(word_ids, length, starts[length]) for length in sorted(starts))
    return Index(n, min_words, tuple(names), texts_seen, short, vocabulary, word_ids, grams)


def find(index: Index, text: str) -> list[Match]:
    """Every place where an indexed item occurs, overlapping n-grams of one item joined; sorted by place, task, item."""
    words = normalise_words(text)
    if len(words) < index.grams[0].length:
        return []
    get = index.vocabulary.get
    ids = np.fromiter((get(w, 0) for w in words), np.int32, len(words))
    runs = _joined(hit for gram in index.grams for hit in _hits(index, gram, ids))
    if not runs:
        return []
    spans = [m.span() for m in WORD.finditer(text)]
    matches = [Match(*index.items[item], spans[first][0], spans[last - 1][1], " ".join(words[first:last])) for item, first, last in runs]
    return sorted(matches, key=lambda m: (m.start, m.end, m.task, m.item_id))


def save_index(index: Index, folder: Path) -> None:
    """Writes an index into a new folder as NumPy arrays and JSON, for other processes to load."""
    folder.mkdir(parents=True)
    head = {"n": index.n, "min_words": index.min_words, "items": index.items, "texts": index.texts, "short_texts": index.short_texts,
            "words": list(index.vocabulary), "lengths": [gram.length for gram in index.grams]}  # fmt: skip
    (folder / "index.json").write_text(json.dumps(head))
    np.save(folder / "word_ids.npy", index.word_ids)
    for gram in index.grams:
        for name in ("hashes", "position", "item"):
            np.save(folder / f"{name}-{gram.length}.npy", getattr(gram, name))


def load_index(folder: Path) -> Index:
    """An index that `save_index` wrote; its arrays are memory-mapped, so processes share them."""
    head = json.loads((folder / "index.json").read_text())

    def array(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    grams = tuple(Grams(n, array(f"hashes-{n}"), array(f"position-{n}"), array(f"item-{n}")) for n in head["lengths"])
    vocabulary = {word: number for number, word in enumerate(head["words"], start=1)}
    items = tuple((task, item_id) for task, item_id in head["items"])
    return Index(head["n"], head["min_words"], items, head["texts"], head["short_texts"], vocabulary, array("word_ids"), grams)


def merged_spans(matches: Iterable[Match]) -> list[tuple[int, int]]:
    """The characters covered by any match, as ascending spans that do not touch."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted((m.start, m.end) for m in matches):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _grams(word_ids: np.ndarray, length: int, texts: list[tuple[int, int, int]]) -> Grams:
    position = np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count, _ in texts])
    item = np.concatenate([np.full(count, number, np.int32) for _, count, number in texts])
    hashes = _rolling(word_ids, length)[position]
    order = np.lexsort((position, hashes))
    return Grams(length, hashes[order], position[order], item[order])


def _rolling(ids: np.ndarray, length: int) -> np.ndarray:
    """A polynomial hash modulo 2**64 of each window of `length` ids."""
    mixed = ids.astype(np.uint64)
    mixed = (mixed ^ (mixed << np.uint64(21))) * _BASE
    mixed ^= mixed >> np.uint64(29)
    windows = len(ids) - length + 1
    value = np.zeros(max(windows, 0), np.uint64)
    for k in range(length):
        value = value * _BASE + mixed[k : k + windows]
    return value


def _hits(index: Index, gram: Grams, ids: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(item, first word, one past the last word) for each indexed n-gram of this length in the text."""
    length = gram.length
    if len(ids) < length:
        return
    unknown = np.concatenate(([0], np.cumsum(ids == 0)))
    windows = np.flatnonzero(unknown[length:] == unknown[:-length])
    if not len(windows):
        return
    hashes = _rolling(ids, length)[windows]
    low = np.searchsorted(gram.hashes, hashes, "left")
    found = low < len(gram.hashes)
    found[found] = gram.hashes[low[found]] == hashes[found]
    for at in np.flatnonzero(found):
        window, entry = int(windows[at]), int(low[at])
        while entry < len(gram.hashes) and gram.hashes[entry] == hashes[at]:
            position = int(gram.position[entry])
            if np.array_equal(index.word_ids[position : position + length], ids[window : window + length]):
                yield int(gram.item[entry]), window, window + length
            entry += 1


def _joined(hits: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Overlapping runs of words of the same item become one."""
    runs: list[tuple[int, int, int]] = []
    for item, first, last in sorted(set(hits)):
        if runs and runs[-1][0] == item and first < runs[-1][2]:
            runs[-1] = (item, runs[-1][1], max(last, runs[-1][2]))
        else:
            runs.append((item, first, last))
    return runs
