"""Measures how a tokenizer divides texts, and how much of its vocabulary they use; and how a baseline tokenizer divides the same texts.

Cost: the texts are encoded once, 3 MB per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RARE_BELOW = 10
LONGEST = 10
DIGITS = "1234567890"
COUNTED_TOKENS = 1 << 18
"""Tokens that are counted at once: a count of one text alone takes time with the size of the vocabulary."""


class GroupUse(TypedDict):
    """The texts of one source and language. words: what stands between white space."""

    source: str
    lang: str
    bytes: int
    tokens: int
    words: int


class BaselineUse(TypedDict):
    """What `baseline_use` found. size: entries of the vocabulary; tokens: of each group, in the order of `VocabularyUse.groups`."""

    size: int
    tokens: list[int]


class NamedBaseline(BaselineUse):
    """What `baseline_use` found of a file. file: its name; sha256: of its content, in hexadecimal."""

    file: str
    sha256: str


class VocabularyUse(TypedDict):
    """What `vocabulary_use` found. Tokens that are special are not counted."""

    groups: list[GroupUse]
    tokens: int
    unused_tokens: int
    rare_tokens: int
    rare_below: int
    longest: list[str]
    digits_text: str
    digits: list[str]
    baseline: NotRequired[NamedBaseline]


def vocabulary_use(tokenizer: Tokenizer, texts: Iterable[tuple[str, str, str]]) -> VocabularyUse:
    """Returns how a byte-level tokenizer divides texts.

    Args:
        tokenizer: The tokenizer.
        texts: (source, language, text).
    """
    import numpy as np

    from stages.tokens.tokenizer.token_bytes import token_bytes

    groups: dict[tuple[str, str], GroupUse] = {}
    used = np.zeros(tokenizer.get_vocab_size(), np.int64)
    waiting: list[int] = []
    for source, lang, text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        group = groups.setdefault((source, lang), {"source": source, "lang": lang, "bytes": 0, "tokens": 0, "words": 0})
        group["bytes"] += len(text.encode())
        group["tokens"] += len(ids)
        group["words"] += len(text.split())
        waiting += ids
        if len(waiting) >= COUNTED_TOKENS:
            used += np.bincount(waiting, minlength=len(used))
            waiting = []
    used += np.bincount(np.array(waiting, np.int64), minlength=len(used))
    sizes = token_bytes(tokenizer)
    ordinary = sizes > 0
    longest = np.lexsort((np.arange(len(sizes)), -sizes))[:LONGEST].tolist()
    return {
        "groups": [groups[key] for key in sorted(groups)],
        "tokens": int(ordinary.sum()),
        "unused_tokens": int((ordinary & (used == 0)).sum()),
        "rare_tokens": int((ordinary & (used > 0) & (used < RARE_BELOW)).sum()),
        "rare_below": RARE_BELOW,
        "longest": [tokenizer.decode([number], skip_special_tokens=False) for number in longest],
        "digits_text": DIGITS,
        "digits": [tokenizer.decode([number]) for number in tokenizer.encode(DIGITS, add_special_tokens=False).ids],
    }


def baseline_use(path: str, texts: Iterable[tuple[str, str, str]]) -> BaselineUse:
    """Returns how another tokenizer divides texts: one of any kind, from outside, so it is called in a separate process.

    What the file says of truncation, padding and special tokens does not count: no token is added or left out.

    Args:
        path: The tokenizer.json.
        texts: (source, language, text).
    """
    from pathlib import Path

    from stages.tokens.tokenizer.bpe import load_plain

    tokenizer = load_plain(Path(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokens: Counter[tuple[str, str]] = Counter()
    for source, lang, text in texts:
        tokens[source, lang] += len(tokenizer.encode(text, add_special_tokens=False).ids)
    return {"size": tokenizer.get_vocab_size(), "tokens": [tokens[key] for key in sorted(tokens)]}
