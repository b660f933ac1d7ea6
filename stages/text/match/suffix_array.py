"""Sorts the places of a text where a word begins by what follows them, so that every verbatim occurrence of words is one range.

A piece is some documents, joined as UTF-8, each followed by the byte END, which occurs in no UTF-8. A word is a run of characters that
`stages/text/match/words.py` does not separate words at (letters, digits, `_`, marks, characters that are skipped there); nothing is folded.
Guarantee: the array has every place where a word begins once, in the order of the bytes from there on. No occurrence crosses documents,
because no query has END.
Cost: six bytes of memory per byte of text while a piece is sorted; about 5 MB of text per second on one busy core (2026-11-23). On disk the text and four
bytes per word, about 1.8 bytes per byte of English.
Source: libdivsufsort (Yuta Mori) by pydivsufsort; OLMoTrace (Liu et al. 2025) and infini-gram (Liu et al. 2024) sort tokens instead. Bytes
are sorted here because the tokens of words depend on the text around them, so that a search for tokens misses occurrences. Only places where
a word begins are kept, as spans begin there; that makes the array a fifth as large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.text.basics.native import compiled
from stages.text.match.words import folding

END = 0xFF
BYTES_PER_BYTE = 6
"""Memory per byte of a piece while it is sorted: the text, where its words begin, and a 4-byte place per byte."""
CHUNK = 1 << 24
ID_BYTES = 16
TEXT, ORDER, STARTS, IDS = "text.bin", "order.bin", "starts.bin", "ids.bin"


@dataclass(frozen=True)
class TextPiece:
    """A piece that can be searched; arrays or memory-mapped files.

    Attributes:
        text: the documents, uint8 [bytes].
        order: where a word begins, sorted by the bytes from there on, uint32 [words].
        starts: where each document begins, and the size of the text, int64 [documents + 1].
        ids: the doc_id of each document, uint8 [documents, 16].
    """

    text: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    ids: np.ndarray


def word_bounds(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (int64 [words], int64 [words]): where each word begins, and where it ends (exclusive).

    Args:
        data: UTF-8, uint8 [bytes]. END separates words.
    """
    first, last = np.empty(len(data) // 2 + 1, np.int64), np.empty(len(data) // 2 + 1, np.int64)
    count = compiled(_word_bounds)(data, folding().table, first, last)
    return first[:count], last[:count]


def build_piece(folder: Path, documents: Iterable[tuple[bytes, bytes]], size: int) -> int:
    """Writes the files of a piece.

    Args:
        folder: an existing folder.
        documents: doc_id (16 bytes) and text in UTF-8 of each document.
        size: bytes of all texts and one more per document; below 4 GiB.

    Returns:
        The number of words.
    """
    from pydivsufsort import divsufsort

    text, begins = np.empty(size, np.uint8), np.zeros(size, bool)
    starts, ids = [0], []
    for doc_id, document in documents:
        start, end = starts[-1], starts[-1] + len(document)
        text[start:end] = np.frombuffer(document, np.uint8)
        text[end] = END
        begins[start + word_bounds(text[start:end])[0]] = True
        starts.append(end + 1)
        ids.append(doc_id)
    places = divsufsort(text)
    with (folder / ORDER).open("wb") as sink:
        for at in range(0, len(places), CHUNK):
            chunk = places[at : at + CHUNK]
            sink.write(chunk[begins[chunk]].astype("<u4").tobytes())
    text.tofile(folder / TEXT)
    np.array(starts, "<i8").tofile(folder / STARTS)
    (folder / IDS).write_bytes(b"".join(ids))
    return int(begins.sum())


def open_piece(folder: Path) -> TextPiece:
    """Returns the piece of a folder, memory-mapped. A file is read where it is searched."""
    text, order = (_mapped(folder / name, kind) for name, kind in ((TEXT, np.uint8), (ORDER, "<u4")))
    return TextPiece(text, order, np.fromfile(folder / STARTS, "<i8"), _mapped(folder / IDS, np.uint8).reshape(-1, ID_BYTES))


def _mapped(path: Path, kind: type | str) -> np.ndarray:
    """Returns a file as an array. An empty file cannot be mapped."""
    return np.asarray(np.memmap(path, kind, "r")) if path.stat().st_size else np.empty(0, kind)


def _word_bounds(data, table, first, last):  # type: ignore[no-untyped-def]
    """Returns the number of words, after first and last were filled. Kernel."""
    count = 0
    place = 0
    inside = False
    while place < len(data):
        at = place
        code = np.uint32(data[place])
        if code < 0x80 or code == 0xFF:
            place += 1
        elif code < 0xE0:
            code = (code & np.uint32(0x1F)) << np.uint32(6) | np.uint32(data[place + 1] & 0x3F)
            place += 2
        elif code < 0xF0:
            code = (
                (code & np.uint32(0x0F)) << np.uint32(12)
                | np.uint32(data[place + 1] & 0x3F) << np.uint32(6)
                | np.uint32(data[place + 2] & 0x3F)
            )
            place += 3
        else:
            code = (
                (code & np.uint32(0x07)) << np.uint32(18)
                | np.uint32(data[place + 1] & 0x3F) << np.uint32(12)
                | np.uint32(data[place + 2] & 0x3F) << np.uint32(6)
                | np.uint32(data[place + 3] & 0x3F)
            )
            place += 4
        word = data[at] != 0xFF and table[code] & np.uint32(3) != 0
        if word and not inside:
            first[count] = at
        elif inside and not word:
            last[count] = at
            count += 1
        inside = word
    if inside:
        last[count] = len(data)
        count += 1
    return count
