"""contamination: searches the training data of the models for every benchmark item, and recomputes each score on the clean items.

The stage searches the documents that the mixture chose, and all conversations and pairs of the training split, as far as the pipeline has
them.

Guarantee: an item is flagged exactly when one of its n-grams occurs there; the matching words are recorded as evidence. Scores are
recomputed from the values of single items. The full set consists of the clean items, the flagged ones, and those that are not searchable,
because they are too short (benchmarks.min_words): nobody knows whether these are clean. The average of a group of lm-eval's tasks is
recomputed over the items of its tasks.
Cost: about 10 MB/s per core over the training text.
Source: n-grams of 13 words and scores on the clean subset, Brown et al. 2020, appendix C.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast
from uuid import UUID

from stages.record.contract.declaration import Artifact, Context, Outcome, Stage
from stages.record.contract.report_section import Section, SectionTable, figure, with_error
from stages.record.contract.side_table import Column, SideTable
from stages.record.settings import StageConfig
from stages.record.tables.shards import Meter, run_shards

if TYPE_CHECKING:
    import pyarrow as pa

    from stages.corpus.text.ngrams import Index, Match

FLAGS = SideTable(
    "flags", "contamination_flags", "a benchmark item found in a record that the models were trained on",
    {
        "task": Column("string", "the benchmark"),
        "item_id": Column("string", "the item"),
        "where": Column("string", "documents, conversations or preferences"),
        "doc_id": Column("uuid", "the record"),
        "url": Column("string", "where a document was found"),
        "words": Column("string", "the longest match"),
        "overlap_frac": Column("float64", "share of the record's characters that it covers, 0 to 1"),
    },
)  # fmt: skip

SEARCHES = SideTable(
    "searches", "contamination_searches", "how many items of a benchmark were searched for in what the models were trained on",
    {
        "task": Column("string", "the benchmark"),
        "items": Column("int64", "its items"),
        "flagged": Column("int64", "items that were found"),
        "not_searchable": Column("int64", "items that cannot be searched for: no text has benchmarks.min_words words"),
    },
)  # fmt: skip


class FlagRow(TypedDict):
    """A row of the table `flags`."""

    task: str
    item_id: str
    where: str
    doc_id: UUID
    url: str | None
    words: str
    overlap_frac: float


class SearchRow(TypedDict):
    """A row of the table `searches`."""

    task: str
    items: int
    flagged: int
    not_searchable: int


class SubsetScore(TypedDict):
    """An entry of scores.json: a score of one model on a subset of the items; `value` is None for an empty subset.

    subset: full, clean, flagged, or not_searchable where there are such items.
    """

    model: str
    task: str
    metric: str
    subset: str
    value: float | None
    stderr: float | None
    n: int


@dataclass(frozen=True)
class SearchTask:
    """A documents file, the folder of the benchmarks' index, and the mixture's table of training spans."""

    documents: Path
    index: Path
    mixture: Path


class Contamination(StageConfig):
    """This stage has no settings. The section benchmarks defines what counts as a benchmark item."""


def run(config: Contamination, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes flags.parquet (one row per item and record), searches.parquet (one row per task) and scores.json (every score by subset).

    Returns:
        The outcome. Its rows are the flags.
    """
    from stages.corpus.text.ngrams import load_index
    from stages.record.tables.parquet import read_rows, schema, write_rows

    items = inputs["benchmarks"].path / "items.parquet"
    saved = inputs["benchmarks"].path / "index"
    index = load_index(saved)
    flags: list[FlagRow] = []
    documents = 0
    if "documents" in inputs:
        files = sorted((inputs["documents"].path / "documents").glob("*.parquet"))
        mixture = inputs["mixture"].path / "sequence_spans" / "train.parquet"
        tasks = [SearchTask(path, saved, mixture) for path in files]
        shards = run_shards(search_documents, tasks, ctx, "documents", [path.stat().st_size for path in files])
        flags += [cast(FlagRow, flag) for shard in shards for flag in read_rows(shard.path / "flags.parquet")]
        documents = sum(shard.result["documents"] for shard in shards)
    for role in ("conversations", "preferences"):
        if role in inputs:
            flags += _search(index, role, _dialogues(inputs[role].path / f"{role}.parquet", role))
    write_rows(out / "flags.parquet", _shape(), flags)
    names = _score_names(inputs["benchmarks"].path)
    found = {(flag["task"], flag["item_id"]) for flag in flags}
    models = [role for role, artifact in inputs.items() if artifact.manifest["kind"] == "scores"]
    short = set(index.never_found())
    flagged, unsearched = ({(name, f"{prefix}{item}") for task, item in some for name, prefix in names[task]} for some in (found, short))
    scored = _scored_items(items, names)
    scores = [score for model in models for score in _rescored(model, inputs[model].path, scored, flagged, unsearched)]
    (out / "scores.json").write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    searches = _searches(Counter(row["task"] for row in read_rows(items, ["task"])), found, short)
    write_rows(out / "searches.parquet", schema(**SEARCHES.types), searches)
    for row in searches:
        if row["not_searchable"]:
            ctx.log(f"{row['task']}: {row['not_searchable']:,} of {row['items']:,} items are too short to be searched for")
    searched = [role for role in ("documents", "conversations", "preferences") if role in inputs]
    by_place = {role: sum(flag["where"] == role for flag in flags) for role in searched}
    summary = {"items": len(index.items), "flagged_items": len(found), "items_too_short": len(short), "documents_searched": documents}
    return Outcome(rows=len(flags), summary=summary | {f"flags_in_{role}": n for role, n in by_place.items()})


def search_documents(folder: Path, task: SearchTask, meter: Meter) -> dict[str, int]:
    """Writes flags.parquet of one documents shard: the items found in the documents that the mixture contains.

    Returns:
        The number of these documents.
    """
    import pyarrow.parquet as pq

    from stages.corpus.text.ngrams import load_index
    from stages.record.tables.parquet import read_rows, write_rows

    shard = int(task.documents.stem)  # a shard keeps its number from documents to tokens
    chosen = set(pq.read_table(task.mixture, columns=["doc_id"], filters=[("shard", "=", shard)]).column("doc_id").to_pylist())
    rows = [row for row in read_rows(task.documents, ["doc_id", "url", "text"]) if row["doc_id"] in chosen]
    meter.expect(len(rows))

    def texts() -> Iterator[tuple[UUID, str | None, str]]:
        for row in rows:
            yield row["doc_id"], row["url"], row["text"]
            meter.add(1, len(row["text"].encode()))

    write_rows(folder / "flags.parquet", _shape(), _search(load_index(task.index), "documents", texts()))
    return {"documents": len(rows)}


def _search(index: Index, where: str, texts: Iterable[tuple[UUID, str | None, str]]) -> list[FlagRow]:
    """Returns one flag per item and record: the longest match and the share of the record's characters that it covers."""
    from stages.corpus.text.ngrams import find

    flags: list[FlagRow] = []
    for doc_id, url, text in texts:
        longest: dict[tuple[str, str], Match] = {}
        for match in find(index, text):
            known = longest.get((match.task, match.item_id))
            if known is None or match.end - match.start > known.end - known.start:
                longest[match.task, match.item_id] = match
        for (task, item), match in sorted(longest.items()):
            flags.append({"task": task, "item_id": item, "where": where, "doc_id": doc_id, "url": url, "words": match.words,
                          "overlap_frac": (match.end - match.start) / len(text)})  # fmt: skip
    return flags


def _dialogues(path: Path, role: str) -> Iterable[tuple[UUID, None, str]]:
    """Yields (doc_id, None, text) of every record of the training split; the text of a pair holds both answers."""
    from stages.corpus.text.turns import tools_of
    from stages.examples.items.dialogue import contents
    from stages.record.tables.parquet import read_rows

    for row in read_rows(path):
        if row["split"] != "train":
            continue
        if role == "conversations":
            yield row["doc_id"], None, contents(json.loads(row["messages"]), tools_of(row.get("tools")))
        else:
            prompt = contents(json.loads(row["prompt"]), tools_of(row.get("tools")))
            yield row["doc_id"], None, f"{prompt}\n{row['chosen']}\n{prompt}\n{row['rejected']}"


def _score_names(benchmarks: Path) -> dict[str, list[tuple[str, str]]]:
    """Returns task -> (name that its scores may have, what stands before its items there).

    The names are that of this version of evaluate, the task's, as of earlier versions, and those of the groups that it is of.
    """
    from stages.examples.items.benchmark_task import scored_name

    found: dict[str, list[tuple[str, str]]] = {}
    for entry in json.loads((benchmarks / "tasks.json").read_text(encoding="utf-8")):
        own = scored_name(entry["name"], entry.get("format", ""))
        groups = [(group, f"{own}/") for group in entry.get("lm_eval", {}).get("groups", ())]
        found[entry["name"]] = [(own, ""), (entry["name"], ""), *groups]
    return found


def _scored_items(items: Path, names: Mapping[str, Sequence[tuple[str, str]]]) -> set[tuple[str, str]]:
    """Returns (name of the scores, item) of every item that is scored."""
    from stages.record.tables.parquet import read_rows

    rows = read_rows(items, ["task", "item_id", "scored"])
    return {(name, f"{prefix}{row['item_id']}") for row in rows if row["scored"] for name, prefix in names[row["task"]]}


def _searches(items: Mapping[str, int], flagged: set[tuple[str, str]], short: set[tuple[str, str]]) -> list[SearchRow]:
    """Returns the rows of the table `searches`. items: task -> number of items."""
    found, unsearched = (Counter(task for task, _ in chosen) for chosen in (flagged, short))
    return [{"task": task, "items": count, "flagged": found[task], "not_searchable": unsearched[task]} for task, count in items.items()]


def _rescored(
    model: str, scores: Path, scored: set[tuple[str, str]], flagged: set[tuple[str, str]], short: Set[tuple[str, str]] = frozenset()
) -> list[SubsetScore]:
    """Returns every benchmark score of one model by subset; an empty subset has the value None.

    Args:
        model: Name of the model.
        scores: Folder of its scores.
        scored: (task, item_id) of the items that models are scored on.
        flagged: Those that were found in the training data.
        short: Those that are too short to be searched for.
    """
    import numpy as np

    from stages.evaluation.statistics.estimates import mean
    from stages.record.tables.parquet import read_rows

    values: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_rows(scores / "samples.parquet"):
        if (row["task"], row["item_id"]) in scored:
            values.setdefault((row["task"], row["metric"]), {})[row["item_id"]] = row["value"]
    results: list[SubsetScore] = []
    for (task, metric), own in values.items():
        dirty, unknown = ({item for item in own if (task, item) in chosen} for chosen in (flagged, short))
        subsets = {"full": set(own), "clean": set(own) - dirty - unknown, "flagged": dirty} | (
            {"not_searchable": unknown} if unknown else {}
        )
        for subset, chosen in subsets.items():
            value, error = mean(np.array([own[item] for item in sorted(chosen)])) if chosen else (None, None)
            results.append(
                {"model": model, "task": task, "metric": metric, "subset": subset, "value": value, "stderr": error, "n": len(chosen)}
            )
    return results


def _shape() -> pa.Schema:
    from stages.record.tables.parquet import schema

    return schema(**FLAGS.types)


def report_section(artifact: Artifact) -> Section:
    """Returns the number of items found and of those not searched for, by task, and every score on all items and on each subset."""
    from stages.record.tables.parquet import read_rows

    searches = tuple(
        {"task": row["task"]} | {name.replace("_", " "): f"{row[name]:,}" for name in ("items", "flagged", "not_searchable")}
        for row in read_rows(artifact.path / "searches.parquet")
    )
    rows = tuple(
        {name: str(score[name]) for name in ("model", "task", "metric", "subset")}
        | {"score": "" if score["value"] is None else with_error(score["value"], score["stderr"]), "items": f"{score['n']:,}"}
        for score in json.loads((artifact.path / "scores.json").read_text(encoding="utf-8"))
    )
    title = "Every score on all items, on the clean subset, on the flagged one, and on those that are not searchable"
    return Section(
        "Scores with and without overlap",
        paragraphs=(" · ".join(f"{name.replace('_', ' ')}: {figure(value)}" for name, value in artifact.summary.items()),),
        tables=(
            SectionTable(
                searches,
                "Items searched for in the training data; nothing is known of those that are not searchable",
                ("items", "flagged", "not searchable"),
            ),
            SectionTable(rows, title, ("score", "items"), folded=True),
        ),
    )


STAGE = Stage(
    name="contamination",
    config=Contamination,
    run=run,
    inputs={
        "documents": "decontaminate", "mixture": "mix", "benchmarks": "benchmarks", "conversations": "conversations",
        "preferences": "preferences", "{model}": "evaluate@{model}",
    },
    optional=("documents", "mixture", "conversations", "preferences", "{model}"),
    one_of=(("documents", "mixture"), ("conversations",), ("preferences",)),
    summary={
        "items": "benchmark items", "flagged_items": "items found in the training data",
        "items_too_short": "items too short to be searched for",
    },
    output="contamination",
    tables=(FLAGS, SEARCHES),
    section=report_section,
    unit="flags",
    does="overlap per item; every score on all, clean and flagged items",
    versions=(
        "first version", "the index of the benchmarks; words as under NFKC_Casefold",
        "in scripts without spaces, n-grams are of characters; items too short to be searched for are no clean items",
        "the averages of groups; items too short to be searched for are called not searchable",
        "reasoning, and tools with their calls and results, are searched",
    ),
    distributions=("numpy", "numba", "pyarrow"),
)  # fmt: skip
