"""filter: drops pages in other languages and pages that break the Gopher, C4 or FineWeb rules.

Guarantee: verdicts are datatrove's own; every page has a decision with its first reason and the values the rules looked at.
Cost: about 1 MB/s of text per core. Source: see stages/text/quality.py; defaults are datatrove's, which are the papers'.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from stages.core import foreign
from stages.core.documents import Ruling, add_books, document_shards, judge_shard
from stages.core.errors import StageError
from stages.core.shards import Meter, collect, run_shards
from stages.core.stage import Artifact, Context, Outcome, Stage, StageConfig


class RepetitionRules(StageConfig):
    """Gopher's repetition rules (Rae et al. 2021, table A1). null leaves a rule out."""

    enabled: bool = True
    """Whether these rules are applied."""
    dup_line_frac: float | None = 0.3
    """Repeated lines, of all lines."""
    dup_para_frac: float | None = 0.3
    """Repeated paragraphs, of all paragraphs."""
    dup_line_char_frac: float | None = 0.2
    """Characters in repeated lines, of all."""
    dup_para_char_frac: float | None = 0.2
    """Characters in repeated paragraphs, of all."""
    top_n_grams: dict[int, float] = {2: 0.2, 3: 0.18, 4: 0.16}
    """Characters in the most frequent word n-gram, of all, by n."""
    dup_n_grams: dict[int, float] = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    """Characters in repeated word n-grams, of all, by n."""


class QualityRules(StageConfig):
    """Gopher's quality rules (Rae et al. 2021, section A.1.1). null leaves a rule out."""

    enabled: bool = True
    """Whether these rules are applied."""
    min_doc_words: int | None = 50
    """Fewest words."""
    max_doc_words: int | None = 100_000
    """Most words."""
    min_avg_word_length: float | None = 3
    """Smallest mean word length (characters)."""
    max_avg_word_length: float | None = 10
    """Largest mean word length (characters)."""
    max_symbol_word_ratio: float | None = 0.1
    """Most hashes, or ellipses, per word."""
    max_bullet_lines_ratio: float | None = 0.9
    """Most lines that begin with a bullet, of all lines."""
    max_ellipsis_lines_ratio: float | None = 0.3
    """Most lines that end in an ellipsis, of all lines."""
    max_non_alpha_words_ratio: float | None = 0.8
    """Fewest words with a letter, of all words (datatrove's name; the paper: 80 % of words)."""
    min_stop_words: int | None = 2
    """Fewest different stop words."""
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """The stop words counted (Gopher's, for English)."""


class C4Rules(StageConfig):
    """C4's rules (Raffel et al. 2020). -1 leaves a numeric rule out."""

    enabled: bool = True
    """Whether these rules are applied."""
    edit_lines: bool = True
    """Whether lines that break a line rule are cut out of kept pages; false takes only the verdict on the page."""
    remove_citations: bool = True
    """Remove [1]-like citation marks."""
    filter_no_terminal_punct: bool = True
    """Line rule: a line ends in terminal punctuation."""
    min_num_sentences: int = 5
    """Fewest sentences left after the line rules."""
    min_words_per_line: int = 3
    """Line rule: fewest words."""
    max_word_length: int = 1000
    """Line rule: longest word (characters)."""
    filter_lorem_ipsum: bool = True
    """Drop pages with "lorem ipsum"."""
    filter_javascript: bool = True
    """Line rule: no mention of javascript."""
    filter_curly_bracket: bool = True
    """Drop pages with a curly bracket."""
    filter_policy: bool = True
    """Line rule: no cookie or privacy policy phrases."""


class FineWebRules(StageConfig):
    """FineWeb's rules (Penedo et al. 2024, section 3.6)."""

    enabled: bool = True
    """Whether these rules are applied."""
    line_punct_thr: float = 0.12
    """Fewest lines that end in punctuation, of all lines."""
    short_line_thr: float = 0.67
    """Most short lines, of all lines."""
    short_line_length: int = 30
    """A short line has at most this many characters."""
    char_duplicates_ratio: float = 0.01
    """Most characters in repeated lines, of all."""
    new_line_ratio: float = 0.3
    """Most line breaks per word."""


class FilterConfig(StageConfig):
    """Languages wanted and the rules of quality, in the order they are applied."""

    languages: tuple[str, ...] = ("en",)
    """ISO 639-1 codes of languages that are kept; empty keeps all."""
    min_lang_score: float = Field(0.5, ge=0, le=1)
    """Smallest language score (1 - distance / 1200 of resiliparse's profiles; a guess: clear English scores above 0.7, clear
    Japanese, Korean or Chinese far lower)."""
    gopher_repetition: RepetitionRules = RepetitionRules()
    """Repetition within a page."""
    gopher_quality: QualityRules = QualityRules()
    """Words, symbols and lines of a page."""
    c4: C4Rules = C4Rules()
    """Lines and phrases of a page."""
    fineweb: FineWebRules = FineWebRules()
    """Shape of a page's lines."""


def run(config: FilterConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes documents/ and decisions/ with every signal."""
    tasks = [{"path": str(path), "config": config.model_dump(mode="json")} for path in document_shards(inputs["documents"].path)]
    shards = run_shards(filter_file, tasks, ctx, "filter")
    books = add_books([shard.result for shard in shards])
    rows = books.kept + books.changed
    if not rows:
        worst = sorted(books.dropped.items(), key=lambda item: -item[1])[:5]
        raise StageError(
            "The filter dropped every document.",
            where=", ".join(f"{reason} {count}" for reason, count in worst) or "no documents came in",
            do="Loosen the rules that drop most; filter.languages names the languages kept.",
        )
    collect(shards, "documents.parquet", out)
    collect(shards, "decisions.parquet", out)
    return Outcome(
        rows=rows, books=books, summary={"documents": rows, "text_chars": books.chars_out, "kept_frac": round(rows / books.rows_in, 4)}
    )


def filter_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Judges one documents shard."""
    from stages.text.quality import SIGNALS, judge_text, make_judge

    config = FilterConfig.model_validate(task["config"])
    judge = make_judge(rule_settings(config), config.gopher_quality.stop_words, config.c4.edit_lines)

    def ruling(row: dict[str, Any]) -> Ruling:
        language = {"lang": row["lang"], "lang_score": row["lang_score"]}
        if config.languages and row["lang"] not in config.languages:
            return Ruling("language", signals=language)
        if row["lang_score"] < config.min_lang_score:
            return Ruling("language_score", signals=language)
        verdict = judge_text(judge, row["text"])
        return Ruling(verdict.reason, verdict.text, "c4.lines_removed", signals={**language, **verdict.signals})

    return judge_shard(Path(task["path"]), folder, ruling, {"lang": "string", "lang_score": "float64", **SIGNALS}, meter)


def rule_settings(config: FilterConfig) -> dict[str, dict[str, Any] | None]:
    """The arguments of datatrove's filters; None for a rule that is off."""
    settings: dict[str, dict[str, Any] | None] = {}
    for name in ("gopher_repetition", "gopher_quality", "c4", "fineweb"):
        rules = getattr(config, name)
        values = rules.model_dump(exclude={"enabled", "edit_lines", "stop_words"})
        for grams in ("top_n_grams", "dup_n_grams"):
            if grams in values:
                values[grams] = tuple(sorted(values[grams].items()))
        settings[name] = values if rules.enabled else None
    return settings


STAGE = Stage(
    name="filter",
    config=FilterConfig,
    run=run,
    inputs={"documents": "documents"},
    output="documents",
    versions=("language, Gopher repetition and quality, C4, FineWeb",),
    distributions=("datatrove", "spacy", "pyarrow"),
    adopt=foreign.ADOPTION,
)
