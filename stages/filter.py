"""filter: drops documents by language, URL lists, Gopher, C4 and FineWeb rules and a classifier's score; repairs and redacts texts.

Order: Unicode repair; URLs to remove; the rules url, language, gopher_repetition, gopher_quality, c4 (with its line edits), fineweb and
quality; redaction of kept documents. A recipe can switch each part on or off and tune it. The rules are entries of one list
(stages/text/quality/rules.py). This module makes a config field of each of their thresholds.

Guarantee: verdicts equal datatrove's, except for the deliberate differences that stages/text/quality/rules.py lists. Every document,
dropped or not, has a decision with its first reason and every signal, so that `loam what-if` needs no rerun for document rules.
Cost: the rules process 2 to 7 MB/s of text per core (tests/bench/bench_filter.py). The first documents are slowest, because their words
are not in the word cache yet. The word cache takes at most 320 MB per worker.
Source: stages/text/quality/rules.py; the defaults are datatrove's, which are those of the papers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from pydantic import Field, create_model, field_validator, model_validator

from stages.core.contract.declaration import Artifact, Context, ExternalFiles, Outcome, Stage
from stages.core.contract.errors import StageError
from stages.core.tables import import_documents
from stages.core.tables.documents import (
    DOCUMENTS,
    Document,
    JudgedShard,
    Ruling,
    add_record_counts,
    decisions_with,
    document_shards,
    judge_shard,
    matched_by_pattern,
)
from stages.core.tables.parquet import read_rows
from stages.core.tables.shards import Meter, Shard, collect, run_shards
from stages.settings import StageConfig
from stages.text.quality import rules
from stages.text.quality.filter_rule import Rule, impossible, thresholds
from stages.text.quality.stop_words import STOPLISTS, check_code

Base = TypeVar("Base", bound=StageConfig)


class UrlRules(StageConfig):
    """URL patterns of yours to remove, and the URL lists that the datatrove package ships."""

    enabled: bool = True
    """Whether datatrove's lists are applied."""


class RepairRules(StageConfig):
    """Unicode repair by ftfy, before everything else."""

    enabled: bool = True
    """Whether texts are repaired."""
    unescape_html: bool = False
    """Decode HTML entities. extract has already decoded those of the page; the remaining ones are text about HTML."""
    remove_terminal_escapes: bool = True
    """Remove ANSI colour codes."""
    fix_encoding: bool = True
    """Repair text that was decoded with the wrong character set (MinÃ¡Å™ becomes Minář)."""
    fix_c1_controls: bool = True
    """Read C1 control characters as Windows-1252."""
    fix_latin_ligatures: bool = False
    """Replace ligatures such as ﬁ by their letters."""
    fix_character_width: bool = False
    """Replace full-width Latin letters by normal ones (wrong for the punctuation of Chinese and Japanese)."""
    uncurl_quotes: bool = False
    """Replace curly quotation marks by straight ones."""
    fix_line_breaks: bool = False
    """Replace every kind of line break by a line feed."""
    fix_surrogates: bool = True
    """Join surrogate pairs into one character."""
    remove_control_chars: bool = True
    """Remove control characters that have no meaning in a text."""


class RepetitionRules(StageConfig):
    """Gopher's repetition rules (Rae et al. 2021, table A1). null switches a rule off."""

    enabled: bool = True
    """Whether these rules are applied."""


class QualityRules(StageConfig):
    """Gopher's quality rules (Rae et al. 2021, section A.1.1). null switches a rule off."""

    enabled: bool = True
    """Whether these rules are applied."""
    stop_words: dict[str, tuple[str, ...]] = {}
    """Stop words by language code. They replace the built-in lists for 43 languages: Gopher's for English, else the eight most frequent
    words in Wikipedia, by jusText. An empty list switches the rule off for the language, for example where no blanks separate words.
    A change of stop words needs a rerun; a change of thresholds does not."""


class C4Rules(StageConfig):
    """C4's rules (Raffel et al. 2020). -1 switches a numeric rule off."""

    enabled: bool = True
    """Whether these rules are applied."""
    edit_lines: bool = True
    """Whether lines that break a line rule are cut out of kept pages; false applies only the verdict on the page."""
    remove_citations: bool = True
    """Remove citation marks such as [1]."""
    filter_no_terminal_punct: bool = True
    """Line rule: a line must end in terminal punctuation."""
    min_words_per_line: int = 3
    """Line rule: a line must have at least this many words."""
    max_word_length: int = 1000
    """Line rule: a word may have at most this many characters."""
    filter_javascript: bool = True
    """Line rule: a line must not mention javascript."""
    filter_policy: bool = True
    """Line rule: a line must not hold phrases of cookie or privacy policies."""


class FineWebRules(StageConfig):
    """FineWeb's rules (Penedo et al. 2024, section 3.6)."""

    enabled: bool = True
    """Whether these rules are applied."""
    short_line_length: int = 30
    """A short line has at most this many characters."""


class ScoreRule(StageConfig):
    """The score of the classifier that the stage train_quality provides."""


class RedactionRules(StageConfig):
    """Personal data to replace in kept documents."""

    enabled: bool = True
    """Whether anything is replaced."""
    emails: bool = True
    """Replace e-mail addresses."""
    ips: bool = True
    """Replace IPv4 addresses. Section numbers such as 6.3.4.1 look the same, so switch this off for manuals."""
    public_ips_only: bool = True
    """Keep private and reserved addresses (datatrove's default)."""
    phones: bool = True
    """Replace phone numbers that are written with separators or brackets."""
    email_replacement: str = "|||EMAIL_ADDRESS|||"
    """Replacement for an e-mail address (Dolma's special token)."""
    ip_replacement: str = "|||IP_ADDRESS|||"
    """Replacement for an IP address (Dolma's special token)."""
    phone_replacement: str = "|||PHONE_NUMBER|||"
    """Replacement for a phone number (Dolma's special token)."""


class FilterSettings(StageConfig):
    """Languages to keep, quality rules and repairs. The order is fixed; the module docstring gives it."""

    repair: RepairRules = RepairRules()
    """Unicode repair."""
    url: UrlRules = UrlRules()
    """Lists of URLs."""
    sure_lang_score: float = Field(0.8, ge=0, le=1)
    """If the first detector (resiliparse, in extract) scores below this value, py3langid decides. Measured on 1,682 pages: at scores of 0.8
    and above, the two agree on 407 of 408 pages. 0 never uses py3langid."""
    lang_model: ExternalFiles = Field((), max_length=1)
    """A fastText model such as lid.176.bin, which decides the language instead of both detectors; at most one file."""
    words: str = "en"
    """Code of the language whose rules split all texts into words, as datatrove defines it (default of its filters: English for all)."""
    gopher_repetition: RepetitionRules = RepetitionRules()
    """Gopher's rules on repetition within a page."""
    gopher_quality: QualityRules = QualityRules()
    """Gopher's rules on words, symbols and lines of a page."""
    c4: C4Rules = C4Rules()
    """C4's rules on lines and phrases of a page."""
    fineweb: FineWebRules = FineWebRules()
    """FineWeb's rules on the lines of a page."""
    quality: ScoreRule = ScoreRule()
    """Threshold on the score of the classifier."""
    pii: RedactionRules = RedactionRules()
    """Redaction of personal data."""

    @model_validator(mode="after")
    def _languages_can_be_judged(self) -> Self:
        given = self.model_dump(include={"languages", "gopher_quality"})
        languages, rules = given["languages"], given["gopher_quality"]
        for code in (*languages, *rules["stop_words"]):
            if not self.lang_model:  # a model has its own codes
                check_code(code)
        missing = [code for code in languages if code not in STOPLISTS and code not in rules["stop_words"]]
        if rules["enabled"] and rules["min_stop_words"] and missing:
            raise ValueError(
                f"no stop words are built in for {missing[0]!r}: give them as gopher_quality.stop_words: {{{missing[0]}: [...]}}, or an empty "
                "list to leave the rule out for it"
            )
        return self

    @field_validator("words")
    @classmethod
    def _has_a_splitter(cls, language: str) -> str:
        if language != "en":  # English is always available; the check of another language takes a second
            from stages.text.quality.word_split import WordSplitter

            WordSplitter(language)
        return language


def with_rules(base: type[Base], rules: Sequence[Rule], section: str = "") -> type[Base]:
    """Returns the config class `base` with one added field per threshold of the rules: name, type, limits, default and help text.

    Args:
        base: Class of the filter's section, or of a subsection.
        rules: All rules of the filter.
        section: Name of the subsection whose rules are added. "" adds the rules of the filter's own keys, and the rules of each
            subsection to its class.

    Raises:
        ValueError: When a rule names a subsection that `base` does not have.
    """
    fields: dict[str, Any] = {one.name: (one.kind, Field(one.default, description=one.description)) for one in thresholds(rules, section)}
    if not section:
        for name in dict.fromkeys(rule.section for rule in rules if rule.section):
            if (here := base.model_fields.get(name)) is None:
                raise ValueError(f"a rule names the section {name!r}; the filter's sections are classes in stages/filter.py")
            made = with_rules(cast("type[StageConfig]", here.annotation), rules, name)
            fields[name] = (made, Field(made(), description=here.description))

    def some_document_fits(self: StageConfig) -> StageConfig:
        values = self.model_dump()
        if values.get("enabled", True) and (fault := impossible(rules, section, values)):
            raise ValueError(fault)
        return self

    check: Any = model_validator(mode="after")(some_document_fits)
    return create_model(
        base.__name__,
        __base__=base,
        __module__=base.__module__,
        __doc__=base.__doc__,
        __validators__={"some_document_fits": check},
        **fields,
    )


FilterConfig = with_rules(FilterSettings, rules.RULES)


def run(config: FilterSettings, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes documents/, and decisions/ with every signal."""
    settings = config.model_dump(mode="json")
    tools = _prepare(config, settings, inputs["classifier"], ctx)
    paths = document_shards(inputs["documents"].path)
    tasks = [{"path": str(path), "tools": tools} for path in paths]
    shards = run_shards(filter_file, tasks, ctx, "filter", [path.stat().st_size for path in paths])
    record_counts = add_record_counts([shard.result for shard in shards])
    rows = record_counts.kept + record_counts.changed
    if not rows:
        worst = sorted(record_counts.dropped.items(), key=lambda item: -item[1])[:5]
        raise StageError(
            "The filter dropped every document.",
            where=", ".join(f"{reason} {count}" for reason, count in worst) or "no documents came in",
            do="Loosen the rules that drop most; filter.languages names the languages kept.",
        )
    collect(shards, "documents.parquet", out)
    collect(shards, "decisions.parquet", out)
    summary = {"documents": rows, "text_chars": record_counts.chars_out, "kept_frac": round(rows / record_counts.rows_in, 4)}
    removed = matched_by_pattern(settings["url"]["remove"], [shard.result["removed"] for shard in shards], "filter.url.remove", ctx)
    return Outcome(rows=rows, record_counts=record_counts, summary={**summary, **_counted(shards), **removed})


def _counted(shards: list[Shard[FilteredShard]]) -> dict[str, float | int]:
    """Returns summary entries: replacements and repairs in kept documents, and the share of documents with a sufficient score."""
    total: dict[str, int] = {}
    for shard in shards:
        for name, count in shard.result["counts"].items():
            total[name] = total.get(name, 0) + count
    scored, enough = total.pop("scored", 0), total.pop("scored_enough", 0)
    return total | ({"quality_kept_frac": round(enough / scored, 4)} if scored else {})


def _prepare(config: FilterSettings, settings: Mapping[str, Any], classifier: Artifact, ctx: Context) -> str:
    """Checks the classifier and the language model, and writes the URL lists to scratch.

    Returns:
        Settings and paths for `make_tools`, as JSON.

    Raises:
        StageError: When a score is required without a classifier, or lang_model is no fastText model.
    """
    from stages.text.quality.urls import write_lists

    state = json.loads((classifier.path / "classifier.json").read_text())
    if settings["quality"]["min_score"] is not None and state["state"] == "off":
        raise StageError(
            "There is no classifier to score documents with.",
            where=f"filter.quality.min_score = {settings['quality']['min_score']}",
            do="Give train_quality.positives or train_quality.model, or set filter.quality.min_score to null.",
        )
    lists = ctx.scratch / "urls" if config.url.enabled else None
    if lists:
        write_lists(lists)
    return json.dumps({
        "config": settings, "lists": str(lists) if lists else None, "label": state.get("label"),
        "classifier": str(classifier.path / "model.bin") if state["state"] != "off" else None,
        "lang_model": _local_model(config, ctx),
    })  # fmt: skip


def _local_model(config: FilterSettings, ctx: Context) -> str | None:
    from stages.core.store.external import local_path
    from stages.text.quality.classifier import NotAModelError, load_model

    if not config.lang_model:
        return None
    path = local_path(ctx.files("lang_model")[0], ctx.scratch)
    try:
        load_model(path)
    except NotAModelError as error:
        raise StageError(str(error), where="filter.lang_model", do="Give a fastText model (.bin or .ftz).") from None
    return str(path)


class FilteredShard(JudgedShard):
    """The result of `filter_file`. counts: what `_counted` sums. removed: URL pattern -> number of documents."""

    counts: dict[str, int]
    removed: dict[str, int]


def filter_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> FilteredShard:
    """Judges one documents shard; returns its record counts, its repairs and replacements, and matches per URL pattern."""
    from stages.text.quality import judge, pii, urls
    from stages.text.quality.url_patterns import matches

    source, tools = Path(task["path"]), judge.make_tools(task["tools"])
    listed = urls.look_up((row["url"] or "" for row in read_rows(source, ["url"])), tools.lists) if tools.lists else {}
    counts, removed = dict.fromkeys(("repaired", *pii.COLUMNS), 0), Counter[str]()
    smallest = tools.settings["quality"]["min_score"]

    def ruling(row: Document) -> Ruling:
        url = row["url"] or ""
        found = judge.judge(row["text"], (cast(str, row["lang"]), row["lang_score"] or 0.0), url, listed.get(url), tools)
        signals = found.signals
        score = signals["quality_score"]
        if score is not None and smallest is not None:
            counts["scored"] = counts.get("scored", 0) + 1
            counts["scored_enough"] = counts.get("scored_enough", 0) + (score >= smallest)
        if found.reason == rules.REMOVED:
            removed.update(pattern for pattern in tools.settings["url"]["remove"] if matches(url, [pattern]))
        if not found.reason:
            for name in ("repaired", *pii.COLUMNS):
                counts[name] += signals[name] or 0
        return Ruling(found.reason, found.text, found.note, signals, {name: signals[name] for name in ("lang", "lang_score")})

    judged = judge_shard(source, folder, ruling, rules.columns(tools.settings), meter)
    return {"record_counts": judged["record_counts"], "rows": judged["rows"], "counts": counts, "removed": removed}


STAGE = Stage(
    name="filter",
    config=FilterConfig,
    run=run,
    inputs={"documents": "extract", "classifier": "train_quality"},
    output="documents",
    tables=(DOCUMENTS, decisions_with({}, more="a column per signal of a rule, by the rule's name in the recipe, whatever the verdict")),
    does="language, Gopher, C4 and FineWeb rules (datatrove)",
    versions=(
        "language, Gopher repetition and quality, C4, FineWeb",
        "URL lists, second opinion on languages, Unicode repair, redaction, a classifier's score; every signal of every document",
        "URLs to remove by recipe",
        "stop words of each text's own language",
    ),
    distributions=("datatrove", "spacy", "pyarrow", "py3langid", "tldextract", "ftfy", "fasttext-numpy2-wheel", "jusText"),
    importer=import_documents.IMPORTER,
)
