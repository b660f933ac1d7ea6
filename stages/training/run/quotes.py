"""Finds which examples quote some documents: many words of them in a row, or a short reply or sentence as a whole.

Guarantee: exact up to collisions of 64-bit word hashes (stages/corpus/text/ngrams.py). Case, punctuation and line breaks do not hide a quote.
Limits: up to 12 words inside a longer sentence are no quote. A reply of fewer than SHORTEST_QUOTE_WORDS is not searched (`too_short`). In
scripts without spaces, as many characters as count as so many words take their place.
Cost: about two minutes per million replies of 2 KB; the documents' index takes about 110 bytes per word while it is built.
Source: n-grams of 13 words, Brown et al. 2020, appendix C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from stages.corpus.text.ngrams import EmptyIndexError, Index, build_index, empty_index, find
from stages.corpus.text.words import SIXTHS, hash_words, joined, normalise_words

QUOTE_WORDS = 13
"""A reply quotes a document if it has this many words of it in a row."""
SHORTEST_QUOTE_WORDS = 5
"""A reply or sentence of fewer than QUOTE_WORDS words is a quote if a document holds all of it. Below this number, it can be any phrase."""
SENTENCE_OR_LINE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。｡．！？။។])\s*|(?<=[\u0e00-\u0eff])\s+|\n+")
"""No space follows most full stops of scripts without spaces. Thai and Lao have a space in place of a full stop."""


@dataclass(frozen=True)
class Quotable:
    """An example that may quote a document.

    Attributes:
        doc_id: Identity of the example.
        replies: The texts that are searched.
    """

    doc_id: UUID
    replies: tuple[str, ...]


def quotes(examples: Iterable[Quotable], documents: Sequence[str]) -> dict[UUID, str]:
    """Returns doc_id of an example -> words that it quotes, folded; examples that quote nothing are left out.

    Args:
        examples: The examples.
        documents: The texts of the documents.
    """
    long = _index_of([("", documents)], QUOTE_WORDS)
    quoted: dict[UUID, str] = {}
    short: dict[str, list[UUID]] = {}
    for example in examples:
        for reply in example.replies:
            if matches := find(long, reply):
                quoted.setdefault(example.doc_id, matches[0].words)
            else:
                for words in _short_parts(reply):
                    short.setdefault(words, []).append(example.doc_id)
    parts = list(short)
    index = _index_of([(str(number), [words]) for number, words in enumerate(parts)], SHORTEST_QUOTE_WORDS)
    found = {int(match.item_id) for text in documents for match in find(index, text)}
    for number in sorted(found):
        for doc_id in short[parts[number]]:
            quoted.setdefault(doc_id, parts[number])
    return quoted


def too_short(examples: Iterable[Quotable]) -> int:
    """Returns the number of examples of which no reply has SHORTEST_QUOTE_WORDS words, so that `quotes` does not search them."""
    return sum(bool((hash_words(*joined(example.replies)).text_sixths() < SIXTHS * SHORTEST_QUOTE_WORDS).all()) for example in examples)


def _short_parts(reply: str) -> list[str]:
    """Returns the reply and its sentences, each as folded words, as far as they have SHORTEST_QUOTE_WORDS to QUOTE_WORDS - 1 words."""
    sentences = SENTENCE_OR_LINE_END.split(reply)
    parts = sentences if len(sentences) == 1 else [reply, *sentences]
    counts = hash_words(*joined(parts)).text_sixths() // SIXTHS
    fits = (counts >= SHORTEST_QUOTE_WORDS) & (counts < QUOTE_WORDS)
    return [" ".join(normalise_words(part)) for part, fit in zip(parts, fits.tolist(), strict=True) if fit]


def _index_of(texts: Sequence[tuple[str, Sequence[str]]], min_words: int) -> Index:
    """Returns an index of (item, texts), without items if no text has min_words words. An n-gram that texts of an item share is in it once."""
    try:
        return build_index([("", item, own) for item, own in texts], QUOTE_WORDS, min_words)
    except EmptyIndexError:
        return empty_index()
