"""filter: languages, URL blocklist, Gopher, C4 and FineWeb rules, a classifier's score; repairs Unicode and redacts addresses.

Order: repair of the text; then URLs to remove and the rules url, language, gopher_repetition, gopher_quality, c4 (with its line edits),
fineweb, quality; then redaction of what is kept. Every part is on or off and tunable by recipe. The rules are entries of one list
(stages/text/quality/rules.py); their thresholds become fields of the config class here.
Guarantee: verdicts are datatrove's own (see stages/text/quality/rules.py for the few that are not, on purpose); every document, dropped or
not, has a decision with its first reason and every signal, so that `loam what-if` needs no rerun for document rules.
Cost: the rules 2 to 7 MB/s of text per core (tests/bench/bench_filter.py), least for the first documents, whose words are new; known
words take 320 MB per worker at most. Source: see stages/text/quality/rules.py; defaults are datatrove's, which are the papers'.
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
    """URLs of your own to leave out, and datatrove's lists, as its package ships them."""

    enabled: bool = True
    """Whether datatrove's lists are looked at."""


class RepairRules(StageConfig):
    """Unicode repair by ftfy, before everything else."""

    enabled: bool = True
    """Whether texts are repaired."""
    unescape_html: bool = False
    """Decode HTML entities (the page's own were decoded by extract; what is left is text about HTML)."""
    remove_terminal_escapes: bool = True
    """Remove ANSI colour codes."""
    fix_encoding: bool = True
    """Mend text that was decoded with the wrong character set (MinÃ¡Å™ is Minář)."""
    fix_c1_controls: bool = True
    """Read C1 control characters as Windows-1252."""
    fix_latin_ligatures: bool = False
    """Spell ligatures such as ﬁ out."""
    fix_character_width: bool = False
    """Make full-width Latin letters normal (wrong for the punctuation of Chinese and Japanese)."""
    uncurl_quotes: bool = False
    """Make quotation marks straight."""
    fix_line_breaks: bool = False
    """Make every kind of line break a line feed."""
    fix_surrogates: bool = True
    """Join pairs of surrogates."""
    remove_control_chars: bool = True
    """Remove control characters that mean nothing in a text."""


class RepetitionRules(StageConfig):
    """Gopher's repetition rules (Rae et al. 2021, table A1). null leaves a rule out."""

    enabled: bool = True
    """Whether these rules are applied."""


class QualityRules(StageConfig):
    """Gopher's quality rules (Rae et al. 2021, section A.1.1). null leaves a rule out."""

    enabled: bool = True
    """Whether these rules are applied."""
    stop_words: dict[str, tuple[str, ...]] = {}
    """By language code, the stop words counted in its texts, in place of those that are built in for 43 languages (Gopher's for English,
    else the eight most frequent in Wikipedia, by jusText). An empty list leaves the rule out for the language, as for one without
    blanks between words. Changing them needs a rerun, thresholds do not."""


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
    min_words_per_line: int = 3
    """Line rule: fewest words."""
    max_word_length: int = 1000
    """Line rule: longest word (characters)."""
    filter_javascript: bool = True
    """Line rule: no mention of javascript."""
    filter_policy: bool = True
    """Line rule: no cookie or privacy policy phrases."""


class FineWebRules(StageConfig):
    """FineWeb's rules (Penedo et al. 2024, section 3.6)."""

    enabled: bool = True
    """Whether these rules are applied."""
    short_line_length: int = 30
    """A short line has at most this many characters."""


class ScoreRule(StageConfig):
    """The score of the classifier that train_quality gives."""


class RedactionRules(StageConfig):
    """Personal data that is replaced in documents that are kept."""

    enabled: bool = True
    """Whether anything is replaced."""
    emails: bool = True
    """Replace e-mail addresses."""
    ips: bool = True
    """Replace IPv4 addresses. Numbers of sections such as 6.3.4.1 look the same: off is better for manuals."""
    public_ips_only: bool = True
    """Leave private and reserved addresses (datatrove's default)."""
    phones: bool = True
    """Replace phone numbers written with separators or brackets."""
    email_replacement: str = "|||EMAIL_ADDRESS|||"
    """What stands for an e-mail address (Dolma's special token)."""
    ip_replacement: str = "|||IP_ADDRESS|||"
    """What stands for an IP address (Dolma's special token)."""
    phone_replacement: str = "|||PHONE_NUMBER|||"
    """What stands for a phone number (Dolma's special token)."""


class FilterSettings(StageConfig):
    """Languages wanted, rules of quality and repairs. The order is fixed; see the module."""

    repair: RepairRules = RepairRules()
    """Unicode repair."""
    url: UrlRules = UrlRules()
    """Lists of URLs."""
    sure_lang_score: float = Field(0.8, ge=0, le=1)
    """Below this score of the first detector (resiliparse, in extract) py3langid decides. Measured on 1,682 pages: from 0.8 on they
    agree on 407 of 408. 0 never asks."""
    lang_model: ExternalFiles = Field((), max_length=1)
    """A fastText model that decides the language instead of both, such as lid.176.bin; at most one file."""
    words: str = "en"
    """The language by whose rules all texts are split into words, a code of datatrove's (its filters' default: English for all)."""
    gopher_repetition: RepetitionRules = RepetitionRules()
    """Repetition within a page."""
    gopher_quality: QualityRules = QualityRules()
    """Words, symbols and lines of a page."""
    c4: C4Rules = C4Rules()
    """Lines and phrases of a page."""
    fineweb: FineWebRules = FineWebRules()
    """Shape of a page's lines."""
    quality: ScoreRule = ScoreRule()
    """Score of a classifier."""
    pii: RedactionRules = RedactionRules()
    """Personal data."""

    @model_validator(mode="after")
    def _languages_can_be_judged(self) -> Self:
        given = self.model_dump(include={"languages", "gopher_quality"})
        languages, rules = given["languages"], given["gopher_quality"]
        for code in (*languages, *rules["stop_words"]):
            if not self.lang_model:  # a model has codes of its own
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
        if language != "en":  # the one that is there for certain; a look at another takes a second
            from stages.text.quality.word_split import WordSplitter

            WordSplitter(language)
        return language


def with_rules(base: type[Base], rules: Sequence[Rule], section: str = "") -> type[Base]:
    """The config class `base` with one more field per threshold of the rules: its name, type, limits, default, and help with unit and source.

    Args:
        base: Class of the filter's section, or of a section in it.
        rules: All rules of the filter.
        section: Which rules count; "" for those of the filter's own keys. The sections in `base` get theirs, too.
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
    """Writes documents/ and decisions/ with every signal."""
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


def _counted(shards: list[Shard]) -> dict[str, float | int]:
    """What the shards counted beside the record counts: replacements and repairs in kept documents; the share that scored high enough."""
    total: dict[str, int] = {}
    for shard in shards:
        for name, count in shard.result["counts"].items():
            total[name] = total.get(name, 0) + count
    scored, enough = total.pop("scored", 0), total.pop("scored_enough", 0)
    return total | ({"quality_kept_frac": round(enough / scored, 4)} if scored else {})


def _prepare(config: FilterSettings, settings: Mapping[str, Any], classifier: Artifact, ctx: Context) -> str:
    """Checks what a worker would fall over, and puts what it needs where it finds it; returns that as JSON, for `make_tools`."""
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


def filter_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Judges one documents shard."""
    from stages.text.quality import judge, pii, urls
    from stages.text.quality.url_patterns import matches

    source, tools = Path(task["path"]), judge.make_tools(task["tools"])
    listed = urls.look_up((row["url"] or "" for row in read_rows(source, ["url"])), tools.lists) if tools.lists else {}
    counts, removed = dict.fromkeys(("repaired", *pii.COLUMNS), 0), Counter[str]()
    smallest = tools.settings["quality"]["min_score"]

    def ruling(row: dict[str, Any]) -> Ruling:
        url = row["url"] or ""
        found = judge.judge(row["text"], (row["lang"], row["lang_score"] or 0.0), url, listed.get(url), tools)
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

    return judge_shard(source, folder, ruling, rules.columns(tools.settings), meter) | {"counts": counts, "removed": removed}


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
