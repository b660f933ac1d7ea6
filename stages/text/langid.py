"""The language of a text, without a model to download.

Guarantee: pure and deterministic. Cost: 26,600 documents/s per core (measured on long, clean pages, accuracy .996).
Source: resiliparse's `detect_fast` (character profiles of 101 Wikipedias). Its result is a distance, not a probability.
"""

from __future__ import annotations

import unicodedata

FARTHEST = 1200  # resiliparse: ranks above are usually wrong, and its own cutoff
READ_CHARS = 50_000


def detect_language(text: str) -> tuple[str, float]:
    """(ISO 639-1 code, score): the score is 1 - distance / 1200, 1 a perfect fit, 0 unusable; ("unknown", 0.0) without a match.

    Reads at most the first 50,000 characters.
    """
    from resiliparse.parse.lang import detect_fast

    language, rank = detect_fast(unicodedata.normalize("NFC", text[:READ_CHARS]), cutoff=FARTHEST)
    if language == "unknown":
        return "unknown", 0.0
    return language, round(max(0.0, 1.0 - rank / FARTHEST), 4)
