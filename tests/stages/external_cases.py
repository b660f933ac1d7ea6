"""Test cases with small external inputs for every config field that reads external files.

A case says how to place the inputs, how to run the stage on them, and in `seen` on which part of them the output may depend. `seen` is
written by hand and derived neither from the key nor from the stage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from stages.corpus import train_quality
from stages.corpus.boilerplate import stage as boilerplate
from stages.corpus.crawl import stage as crawl
from stages.corpus.dedup import stage as dedup
from stages.corpus.filter import stage as filter
from stages.corpus.text.classifier import FastTextSettings, train
from stages.examples import conversations, preferences
from stages.examples.benchmarks import stage as benchmarks
from stages.record.contract.declaration import Artifact, Stage
from stages.record.tables.shards import run_in_pool
from stages.tokens.train_tokenizer import stage as train_tokenizer
from tests.conftest import run_stage
from tests.corpus.warc.test_records import member, record
from tests.stages.made import documents, jsonl
from tests.stages.test_boilerplate import SUBJECTS, extracted, site, warc


@dataclass(frozen=True)
class Entry:
    """One value of an external field. content: a label that the case turns into bytes (of a package: its version)."""

    name: str
    content: str


Entries = tuple[Entry, ...]


@dataclass(frozen=True)
class Case:
    """How one external field is tested.

    names, contents: labels for entries; a base case uses one of each, in every order. place(folder, entries): writes the entries there and
    returns the values of the field. config(values), inputs(shop): config and inputs of the stage; shop is a folder for files that all runs
    share. seen(entries): the part of the entries that the output depends on. spare: why the key may change although the output does not;
    empty if it may not. single: whether the field has at most one value.
    """

    stage: Stage
    names: tuple[str, ...]
    contents: tuple[str, ...]
    place: Callable[[Path, Entries], list[str]]
    config: Callable[[list[str]], dict[str, Any]]
    seen: Callable[[Entries], object]
    inputs: Callable[[Path], Mapping[str, Artifact]] = field(default=lambda shop: {})
    spare: str = ""
    single: bool = False
    examples: int = 2


UNREAD = "the key is made before a file is read, so it counts a name, an order and a copy that this content happens not to show"
OTHER_WORDS = {"plain": "river", "sourced": "mountain", "broken": "forest", "more": "desert"}


def lines_of(make: Callable[[int, str], dict[str, Any]], count: int, content: str) -> str:
    """Returns JSON Lines of `count` records. Content "sourced" and "broken": records name their source. "broken": one line is no JSON."""
    own = {"source": "own"} if content in ("sourced", "broken") else {}
    lines = [json.dumps(make(number, OTHER_WORDS[content]) | own) for number in range(count)]
    return "\n".join(["{" if content == "broken" else "", *lines]) + "\n"


def files_by(text: Callable[[str], str | bytes]) -> Callable[[Path, Entries], list[str]]:
    """Returns a `place` function for files. Each file has its own folder, so that two files can have the same name."""

    def place(folder: Path, entries: Entries) -> list[str]:
        values = []
        for number, entry in enumerate(entries):
            path = folder / f"{number}" / entry.name
            path.parent.mkdir(parents=True)
            made = text(entry.content)
            path.write_bytes(made if isinstance(made, bytes) else made.encode())
            values.append(str(path))
        return values

    return place


def records_seen(entry: Entry) -> tuple[str, ...]:
    """A record without a source gets the file name up to the first dot; a bad line is recorded under the whole file name."""
    named = {"sourced": "", "broken": entry.name}.get(entry.content, entry.name.partition(".")[0])
    return entry.content, named


def named_seen(entry: Entry) -> tuple[str, ...]:
    """The records of a named source have its name, whatever they say; a bad line is recorded under the whole file name."""
    return entry.content, entry.name if entry.content == "broken" else ""


def item(number: int, word: str) -> dict[str, Any]:
    return {"context": f"The {word} number {number} is long and wide and deep and runs to the old", "continuation": "sea"}


def chat(number: int, word: str) -> dict[str, Any]:
    turns = (("user", f"Where is {word} {number}?"), ("assistant", f"The {word} number {number} is there."))
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def pair(number: int, word: str) -> dict[str, Any]:
    return {"prompt": f"Where is {word} {number}?", "chosen": f"The {word} {number} is there.", "rejected": "Nowhere."}


def held_out(shop: Path) -> Mapping[str, Artifact]:
    if not (shop / "held").exists():
        _made[shop] = run_stage(benchmarks.STAGE, {"files": [jsonl(shop / "held" / "quiz.jsonl", [item(1, "glacier")])]}, {}, shop / "held")
    return {"benchmarks": _made[shop]}


_made: dict[Path, Artifact] = {}


def page_file(content: str) -> bytes:
    numbers = {"one": (1, 2), "two": (3,), "torn": (4, 5)}[content]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=UTF-8\r\n\r\n"
    pages = [member(record(n, f"<html><body><p>Page {n} says this in plain words.</p></body></html>".encode(), head)) for n in numbers]
    return b"".join(pages)[: -20 if content == "torn" else None]


def weather(content: str) -> str:
    word = {"rain": "rain", "wind": "wind", "broken": "snow"}[content]
    texts = [f"The {word} of day {i} over the hills, clouds in the evening, a storm of {i * 3} hours. " * 4 for i in range(120)]
    return "\n".join([json.dumps({"text": text}) for text in texts] + (["{"] if content == "broken" else [])) + "\n"


def positives_seen(entries: Entries) -> object:
    """The set of texts, and the bad lines in the order of the files."""
    return frozenset(e.content for e in entries), tuple(e.name for e in entries if e.content == "broken")


def machines(shop: Path) -> Mapping[str, Artifact]:
    texts = [f"Mount the file system number {i} with the flag and the socket of daemon {i * 7}. " * 4 for i in range(120)]
    return {"documents": documents(shop / "machines", [texts])}


@cache
def model(content: str, shop: Path) -> bytes:
    """A fastText model that distinguishes the two languages, or confuses them."""
    lines = shop / f"{content}.txt"
    labels = ("en", "de") if content == "right" else ("de", "en")
    lines.write_text(f"__label__{labels[0]} the house of the baker\n__label__{labels[1]} das Haus des Bäckers\n" * 60)
    run_in_pool([partial(train, lines, lines.with_suffix(".bin"), FastTextSettings(64, 2, 132_000, 5, 0.5), 1)], 1, "test")
    return lines.with_suffix(".bin").read_bytes()


def place_model(folder: Path, entries: Entries) -> list[str]:
    shop = folder.parents[1] / "models"
    shop.mkdir(exist_ok=True, parents=True)
    return files_by(lambda content: model(content, shop))(folder, entries)


def pages(shop: Path) -> Mapping[str, Artifact]:
    texts = ["The baker opened the door of the house, and the people who had waited came in to buy bread for the day."]
    return {"documents": documents(shop / "pages", [texts])}


def other_tokenizer(content: str) -> str:
    """A tokenizer.json with one unknown token per word, or per letter."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if content == "words" else pre_tokenizers.Split(Regex("."), "isolated")
    return str(tokenizer.to_str())


WHOLE = [f"Document {n} of the corpora has its own {n * 31} words and is repeated word for word." for n in range(5)]
CORPORA = {"first": (0, 1), "both": (1, 2), "last": (3,)}


@cache
def corpus(content: str, shop: Path) -> Path:
    made = documents(shop / f"documents-{content}", [[WHOLE[n] for n in CORPORA[content]]])
    return run_stage(dedup.STAGE, {}, {"documents": made}, shop / content).path


def place_artifacts(folder: Path, entries: Entries, made: Callable[[str, Path], Path]) -> list[str]:
    """Copies artifacts into folders as in other homes; returns the paths. made(content, shop): the folder of an artifact."""
    shop = folder.parents[1] / "existing"
    shop.mkdir(exist_ok=True, parents=True)
    values = []
    for number, entry in enumerate(entries):
        source = made(entry.content, shop)
        path = folder / f"{number}" / "artifacts" / source.parent.name / entry.name
        shutil.copytree(source, path)
        values.append(str(path))
    return values


def place_corpora(folder: Path, entries: Entries) -> list[str]:
    return place_artifacts(folder, entries, corpus)


def corpora_seen(entries: Entries) -> object:
    """Returns for each new document the first corpus that has it. clusters.parquet names that corpus and its document."""
    return [next((entry for entry in entries if n in CORPORA[entry.content]), None) for n in range(len(WHOLE))]


def place_packages(folder: Path, entries: Entries) -> list[str]:
    """Writes installed distributions with documentation. This process and its children find them on the test's search path."""
    for entry in set(entries):
        info = folder / f"{entry.name}-{entry.content}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {entry.name}\nVersion: {entry.content}\n")
        verbs = ["opens", "closes", "moves", "copies", "counts", "sorts", "reads", "writes", "finds", "drops"]
        body = "".join(f'def {verb}():\n    """It {verb} every {entry.name} box in the large house."""\n\n' for verb in verbs)
        (folder / f"{entry.name}.py").write_text(f'"""The {entry.name} boxes of the house."""\n\n{body}')
        (info / "RECORD").write_text(f"{entry.name}.py,,\n{info.name}/METADATA,,\n")
    return [entry.name for entry in entries]


MENUS = {"first": "<p>Alpha</p>", "both": "<p>Alpha</p><p>Beta</p>", "last": "<p>Beta</p>"}


def place_crawls(folder: Path, entries: Entries) -> list[str]:
    return place_artifacts(folder, entries, bodies_of)


@cache
def bodies_of(content: str, shop: Path) -> Path:
    pages = warc(shop / f"{content}.warc.gz", site(subjects=SUBJECTS[:2], menu=MENUS[content]))
    return run_stage(boilerplate.STAGE, {}, {"documents": extracted([pages], shop / f"bodies-{content}")}, shop / f"bodies-{content}").path


def new_pages(shop: Path) -> dict[str, Artifact]:
    """Three pages with both lines: with two earlier pages of a line, it recurs."""
    pages = warc(shop / "new.warc.gz", site(subjects=SUBJECTS[2:5], menu=MENUS["both"]))
    return {"documents": extracted([pages], shop / "new-pages")}


def lines_seen(entries: Entries) -> object:
    """Returns which of the two lines recur, and how many earlier pages the host has."""
    known = {entry.content for entry in entries}
    return bool(known & {"first", "both"}), bool(known & {"both", "last"}), len(entries)


OWN_TASK = """
task: {task}
output_type: multiple_choice
test_split: test
doc_to_text: "{task} asks: {{{{question}}}}"
doc_to_choice: "{{{{choices.text}}}}"
doc_to_target: "{{{{choices.label.index(answerKey)}}}}"
metric_list:
  - metric: acc
"""
"""A YAML task in lm-eval's form."""


def question(number: int, word: str) -> dict[str, Any]:
    choices = {"text": [f"by the {word}", "nowhere at all"], "label": ["A", "B"]}
    return {
        "question": f"Where in the wide valley is {word} number {number} to be found?",
        "choices": choices,
        "answerKey": "AB"[number % 2],
    }


def place_task_data(folder: Path, entries: Entries) -> list[str]:
    """Writes the files of one task, and the YAML of the task beside their folders."""
    values = files_by(partial(lines_of, question, 3))(folder, entries)
    (folder / "mine.yaml").write_text(OWN_TASK.format(task="mine"))
    return values


def task_data_config(files: list[str]) -> dict[str, Any]:
    own = str(Path(files[0]).parents[1] / "mine.yaml")
    return {"lm_eval": {"own": [own], "data": {"mine": files}}, "max_bad_records": 9}


def place_own_tasks(folder: Path, entries: Entries) -> list[str]:
    """Writes YAML tasks with the names of their contents, and the one file that all of them read."""
    values = files_by(lambda content: OWN_TASK.format(task=content))(folder, entries)
    jsonl(folder / "test.jsonl", [question(number, "river") for number in range(3)])
    return values


def own_tasks_config(files: list[str]) -> dict[str, Any]:
    data = str(Path(files[0]).parents[1] / "test.jsonl")
    tasks = dict.fromkeys(
        line.partition(": ")[2]
        for file in files
        for line in Path(file).read_text(encoding="utf-8").splitlines()
        if line.startswith("task:")
    )
    return {"lm_eval": {"own": files, "data": dict.fromkeys(tasks, [data])}}


def place_harness(folder: Path, entries: Entries) -> list[str]:
    """Writes metadata of another version of lm-eval before that of the installed one, whose files stay the ones that are read."""
    for entry in entries:
        info = folder / f"lm_eval-{entry.content}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lm-eval\nVersion: {entry.content}\n")
        (info / "RECORD").write_text(f"{info.name}/METADATA,,\n")
    return [str(path) for path in place_task_data(folder, (Entry("test.jsonl", "plain"),))]


def core_record(number: int, word: str) -> dict[str, Any]:
    return {
        "query": f"Question: where in the wide valley is {word} number {number}?",
        "choices": [f"by the {word}", "nowhere"],
        "gold": number % 2,
    }


def core_config(files: list[str]) -> dict[str, Any]:
    """Writes a bundle whose tasks have one of the files each."""
    places = [Path(file).parts[-2:] for file in files]
    tasks = [
        {"label": f"task{number}", "dataset_uri": "/".join(place), "icl_task_type": "multiple_choice", "num_fewshot": [0]}
        for number, place in enumerate(places)
    ]
    folder = Path(files[0]).parents[1]
    (folder / "core.yaml").write_text(json.dumps({"icl_tasks": tasks}))
    (folder / "baselines.csv").write_text("".join(["Eval Task,Random baseline\n", *(f"{task['label']},50\n" for task in tasks)]))
    return {"core": {"files": [str(folder / "core.yaml"), str(folder / "baselines.csv"), *files]}, "max_bad_records": 9}


NO_RULES = {rules: {"enabled": False} for rules in ("url", "gopher_repetition", "gopher_quality", "c4", "fineweb")}
NAMES = ("arc.jsonl", "quiz.jsonl", "arc.v2.jsonl")
CASES: dict[str, Case] = {
    "benchmarks.files": Case(
        benchmarks.STAGE, NAMES, ("plain", "broken", "more"), files_by(partial(lines_of, item, 4)),
        lambda files: {"files": files, "max_bad_records": 9}, lambda entries: [(e.content, *_task(e)) for e in entries], spare=UNREAD,
    ),
    "benchmarks.docstrings.packages": Case(
        benchmarks.STAGE, ("alpha", "beta"), ("1.0", "2.0"), place_packages,
        lambda packages: {"docstrings": {"packages": packages, "items": 4}, "ngram_words": 4, "min_words": 4}, list,
    ),
    "benchmarks.lm_eval.data": Case(
        benchmarks.STAGE, ("test.jsonl", "test-1.jsonl", "more.test.jsonl"), ("plain", "broken", "more"), place_task_data, task_data_config,
        lambda entries: [(e.content, e.name if e.content == "broken" else "") for e in entries], spare=UNREAD, examples=1,
    ),
    "benchmarks.lm_eval.own": Case(
        benchmarks.STAGE, ("mine.yaml", "yours.yaml", "third.yaml"), ("alpha", "beta", "gamma"), place_own_tasks, own_tasks_config, list, examples=1,
    ),
    "benchmarks.lm_eval.harness": Case(
        benchmarks.STAGE, ("lm-eval",), ("98.0", "99.0"), place_harness, task_data_config, lambda entries: "the same files", single=True, examples=1,
        spare="the version of lm-eval is in the key, whatever of it a task reads",
    ),
    "benchmarks.core.files": Case(
        benchmarks.STAGE, NAMES, ("plain", "broken", "more"), files_by(partial(lines_of, core_record, 3)), core_config,
        lambda entries: [(e.content, e.name if e.content == "broken" else "") for e in entries], spare=UNREAD, examples=1,
    ),
    "conversations.files": Case(
        conversations.STAGE, NAMES, ("plain", "sourced", "broken"), files_by(partial(lines_of, chat, 20)),
        lambda files: {"files": files, "max_bad_records": 9}, lambda entries: [*map(records_seen, entries)], held_out, spare=UNREAD,
    ),
    "preferences.files": Case(
        preferences.STAGE, NAMES, ("plain", "sourced", "broken"), files_by(partial(lines_of, pair, 60)),
        lambda files: {"files": files, "max_bad_records": 9, "validation_frac": 0.4}, lambda entries: [*map(records_seen, entries)],
        held_out, spare=UNREAD,
    ),
    "conversations.sources.files": Case(
        conversations.STAGE, NAMES, ("plain", "sourced", "broken"), files_by(partial(lines_of, chat, 20)),
        lambda files: {"sources": {"mine": {"files": files, "factor": 1.5}}, "max_bad_records": 9}, lambda entries: [*map(named_seen, entries)],
        held_out, spare=UNREAD,
    ),
    "preferences.sources.files": Case(
        preferences.STAGE, NAMES, ("plain", "sourced", "broken"), files_by(partial(lines_of, pair, 60)),
        lambda files: {"sources": {"mine": {"files": files, "factor": 1.5}}, "max_bad_records": 9, "validation_frac": 0.4},
        lambda entries: [*map(named_seen, entries)], held_out, spare=UNREAD,
    ),
    "crawl.warcs": Case(
        crawl.STAGE, ("a.warc.gz", "b.warc.gz", "c.warc"), ("one", "two", "torn"), files_by(page_file),
        lambda files: {"warcs": files}, list,
    ),
    "crawl.sources": Case(
        crawl.STAGE, ("a.warc.gz", "b.jsonl", "c.warc"), ("one", "two", "torn"), files_by(page_file),
        lambda files: {"sources": {"web": files}}, list,
    ),
    "crawl.docs.packages": Case(
        crawl.STAGE, ("alpha", "beta"), ("1.0", "2.0"), place_packages,
        lambda packages: {"docs": {"packages": packages, "min_page_chars": 1, "editions": ["stable"]}, "shards": 1}, list, examples=1,
    ),
    "train_quality.positives": Case(
        train_quality.STAGE, ("good.jsonl", "fine.ndjson"), ("rain", "broken", "wind"), files_by(weather),
        lambda files: {"positives": files, "max_bad_records": 9, "learning_rate": 0.5, "buckets": 132_000}, positives_seen, machines,
        spare=UNREAD, examples=1,
    ),
    "train_quality.model": Case(
        train_quality.STAGE, ("good.bin", "fine.model"), ("right", "wrong"), place_model,
        lambda files: {"model": files, "label": "__label__en"}, lambda entries: [e.content for e in entries], machines, single=True,
        examples=1,
    ),
    "filter.lang_model": Case(
        filter.STAGE, ("lid.bin", "lid.ftz"), ("right", "wrong"), place_model,
        lambda files: {"lang_model": files, "languages": [], "min_lang_score": 0.0} | NO_RULES, lambda entries: [e.content for e in entries], pages, single=True,
        examples=1,
    ),
    "train_tokenizer.baseline": Case(
        train_tokenizer.STAGE, ("tokenizer.json", "gpt2.json"), ("words", "letters"), files_by(other_tokenizer),
        lambda files: {"baseline": files, "vocab_size": 270}, lambda entries: "the tokenizer", pages, single=True, examples=1,
        spare="the figures of the baseline are in the summary and in vocabulary.json, which no digest counts",
    ),
    "boilerplate.against": Case(
        boilerplate.STAGE, ("0123456789ab", "0123456789ab.2", "ba9876543210"), ("first", "both", "last"), place_crawls,
        lambda folders: {"against": folders}, lines_seen, new_pages, examples=1, spare="the order of the earlier crawls is in the key",
    ),
    "dedup.against": Case(
        dedup.STAGE, ("0123456789ab", "0123456789ab.2", "ba9876543210"), ("first", "both", "last"), place_corpora,
        lambda folders: {"against": folders}, corpora_seen,
        lambda shop: {"documents": documents(shop / "new", [WHOLE])}, examples=1,
        spare="the key is made before corpora are compared, so it counts one that has no copy of its own",
    ),
}  # fmt: skip


def _task(entry: Entry) -> Sequence[str]:
    """The task name of a benchmark file, and the whole file name if a bad line is recorded under it."""
    return entry.name.partition(".")[0], entry.name if entry.content == "broken" else ""
