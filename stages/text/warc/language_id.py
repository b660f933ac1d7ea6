"""The language of a text: a fast detector, a slower second opinion, or a fastText model by path.

Guarantee: pure and deterministic, no network. Cost: the first 26,600 documents/s per core, the second about 1,000.
Measured on 1,682 pages of a crawl of manuals in some 25 languages: where the first scores 0.8 or more the two agree on 407 of 408
pages; below that, of some 35 disagreements read, nearly all were the first one's error, most of them East Asian and Cyrillic pages with code.
Source: resiliparse's `detect_fast` (character profiles of 101 Wikipedias; its result is a distance, no probability); py3langid (Barbaresi's
fork of langid.py, Lui & Baldwin 2012).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from stages.text.basics.nfc import compose

FARTHEST = 1200  # resiliparse: ranks above are usually wrong, and its own cutoff
READ_CHARS = 50_000
SECOND_READ_CHARS = 4_000
"""What the second detector reads: its time grows with it (2.9 ms for a whole page of 8,000 on average)."""


def detect_language(text: str) -> tuple[str, float]:
    """(ISO 639-1 code, score): the score is 1 - distance / 1200, 1 a perfect fit, 0 unusable; ("unknown", 0.0) without a match.

    Reads at most the first 50,000 characters.
    """
    from resiliparse.parse.lang import detect_fast

    language, rank = detect_fast(compose(text[:READ_CHARS]), cutoff=FARTHEST)
    if language == "unknown":
        return "unknown", 0.0
    return language, round(max(0.0, 1.0 - rank / FARTHEST), 4)


def second_opinion(text: str) -> tuple[str, float]:
    """py3langid's (ISO 639-1 code, probability), from the first 4,000 characters."""
    language, probability = _identifier().classify(text[:SECOND_READ_CHARS])
    return language, round(probability, 4)


def model_language(text: str, model: Any) -> tuple[str, float]:
    """The best label of a fastText model and its probability. "__label__en" is "en", "__label__eng_Latn" is "eng"."""
    labels, probabilities = model.predict(" ".join(text.split()))
    if not labels:
        return "unknown", 0.0
    return labels[0].removeprefix("__label__").partition("_")[0], round(min(1.0, float(probabilities[0])), 4)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
