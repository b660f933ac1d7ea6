"""Explains why a stage dropped or changed a document: the deciding comparison, the kept copy, and the benchmark items found.

Guarantee: the values come from the side tables and the config of the artifact that decided. Only n-grams are counted again, with the
same word splitting as the search (stages/text/match/words.py), because `hits` joins overlapping n-grams into one row. A value that is not
in this home is None and is never guessed. This can be a corpus of `dedup.against`, the benchmark items, or the texts before
decontamination.
Cost: one query of each side table of the artifact per document; counting n-grams loads numba.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stages.core.index.database import Ask, as_dicts
from stages.core.tables.dedup_tables import REPEATS_CUT, DedupReason
from stages.queries.rule_thresholds import BELOW, IS, Measured, extract_measured, filter_measured, removed_url, setting_of

WORDS_CHARS = 300  # maximum characters of a match in an answer; the side table `hits` has all of them


@dataclass(frozen=True)
class Copy:
    """The document that dedup kept in place of another one.

    Attributes:
        kind: "exact" (equal text up to white space) or "near".
        doc_id: the document that was kept.
        url: its URL; None if its decisions are not in this home.
        jaccard: verified Jaccard similarity of the two shingle sets, from 0 to 1. An exact copy of a document that was removed as a near
            copy has the similarity of that document, below 1.
        threshold: `dedup.threshold` of the artifact.
        shingle_words: words per shingle.
        corpus: artifact of `dedup.against` that holds the kept document; empty if the artifact itself holds it.
    """

    kind: str
    doc_id: str
    url: str | None
    jaccard: float | None
    threshold: float | None
    shingle_words: int | None
    corpus: str


@dataclass(frozen=True)
class ItemMatch:
    """A benchmark item found in a document.

    Attributes:
        benchmark, item_id: the item.
        words: matching words, folded, the first WORDS_CHARS characters.
        words_chars: characters of all matching words.
        word_count: number of matching words.
        ngrams: number of the item's n-grams among them; None if the benchmarks are not in this home.
        start, end: character offsets in the document before this round of cutting.
        round: 1, or higher for a match that only appeared after an earlier round of cutting.
    """

    benchmark: str
    item_id: str
    words: str
    words_chars: int
    word_count: int
    ngrams: int | None
    start: int
    end: int
    round: int


@dataclass(frozen=True)
class Named:
    """A document by its id and URL."""

    doc_id: str
    url: str | None


@dataclass(frozen=True)
class Evidence:
    """Why a document was dropped or changed.

    Attributes:
        measured: values, with the thresholds that they were compared with.
        copy: the document that dedup kept in its place.
        removed: documents named by `dedup.remove_copies_of` of which this document is a removed copy.
        matches: benchmark items that decontaminate found.
    """

    measured: tuple[Measured, ...] = ()
    copy: Copy | None = None
    removed: tuple[Named, ...] = ()
    matches: tuple[ItemMatch, ...] = ()


def evidence(ask: Ask, artifact: str, row: Mapping[str, Any]) -> Evidence:
    """The reasons why `artifact` dropped or changed a document; empty for a document that it kept unchanged.

    Args:
        ask: runs a query on one connection to the index.
        artifact: "<node>/<folder>" of extract, filter, dedup or decontaminate.
        row: the decision, with every column of the `decisions` view.
    """
    if row["verdict"] not in ("dropped", "changed"):
        return Evidence()
    config = _config(ask, artifact)
    node = artifact.partition("/")[0]
    if node == "extract":
        return Evidence((*extract_measured(row, config), *_warc_file(ask, artifact, row)))
    if node == "filter":
        return Evidence(tuple(filter_measured(row, config)))
    return _of_dedup(ask, artifact, row, config) if node == "dedup" else _of_decontaminate(ask, artifact, row, config)


def _config(ask: Ask, artifact: str) -> Mapping[str, Any]:
    """The config in the manifest of an artifact; empty if the artifact is not in this home."""
    found = ask("SELECT config FROM artifact WHERE artifact_id = ?", [artifact])[1]
    config = json.loads(found[0][0]) if found else {}
    return config if isinstance(config, Mapping) else {}


def _rows(ask: Ask, artifact: str, kind: str, condition: str, values: Sequence[Any], columns: str = "*") -> list[dict[str, Any]]:
    """Rows of one side table of an artifact; empty if this home has no such artifact or side table."""
    views = ask("SELECT view FROM side_table WHERE artifact_id = ? AND kind = ? LIMIT 1", [artifact, kind])[1]
    if not views:
        return []
    sql = f"SELECT {columns} FROM {views[0][0]} WHERE contains(file, ?) AND artifact_id = ? AND {condition}"
    return as_dicts(ask(sql, [f"/{artifact}/", artifact, *values]))


def _parent(ask: Ask, artifact: str, role: str) -> str:
    """The input of an artifact in a role; empty if none is recorded."""
    found = ask("SELECT parent FROM edge WHERE child = ? AND role = ? AND input", [artifact, role])[1]
    return str(found[0][0]) if found else ""


def _warc_file(ask: Ask, artifact: str, row: Mapping[str, Any]) -> Iterator[Measured]:
    """Yields the name of the WARC file that a record was read from."""
    for file in _rows(ask, artifact, "files", "warc = ? LIMIT 1", [row.get("warc")], "name"):
        yield Measured("warc", file["name"], unit="WARC file")


def _of_dedup(ask: Ask, artifact: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> Evidence:
    reason = str(row["reason"] or "")
    if reason == DedupReason.URL_REMOVED:
        return Evidence((removed_url("dedup.remove_copies_of", row["url"], config.get("remove_copies_of")),))
    if reason == DedupReason.TOO_LITTLE_LEFT:  # the characters left are not recorded
        least = setting_of(config, "repeats.min_left_chars")
        left = Measured("chars_left", None, BELOW, "dedup.repeats.min_left_chars", least, "characters")
        return Evidence((_cut_repeats(row, config), left))
    if reason == REPEATS_CUT:
        return Evidence((_cut_repeats(row, config),))
    removed = _named_with(ask, artifact, row) if reason == DedupReason.COPY_OF_REMOVED else ()
    for member in _rows(ask, artifact, "clusters", "doc_id = ?::UUID", [str(row["doc_id"])]):
        if member["kind"] in ("exact", "near"):  # a document can also have a row as the kept member of its cluster
            corpus = str(member["corpus"] or "")
            kept = _rows(ask, corpus or artifact, "decisions", "doc_id = ?::UUID", [str(member["kept_doc_id"])], "url")
            url = kept[0]["url"] if kept else None
            threshold, shingle_words = config.get("threshold"), config.get("shingle_words")
            copy = Copy(member["kind"], str(member["kept_doc_id"]), url, member["jaccard"], threshold, shingle_words, corpus)
            return Evidence(copy=copy, removed=removed)
    return Evidence(removed=removed)


def _cut_repeats(row: Mapping[str, Any], config: Mapping[str, Any]) -> Measured:
    unit, most = (setting_of(config, f"repeats.{name}") for name in ("unit", "max_per_source"))
    return Measured("parts_cut", row.get("parts_cut"), "more often than", "dedup.repeats.max_per_source", most, f"{unit}s in a source")


def _named_with(ask: Ask, artifact: str, row: Mapping[str, Any]) -> tuple[Named, ...]:
    """The documents named by `remove_copies_of` that are copies of the kept document of this document's cluster."""
    kept = str(row.get("kept_doc_id") or row["doc_id"])
    pairs = _rows(ask, artifact, "pairs", "kept_doc_id = ?::UUID", [kept], "doc_id")
    later = [str(pair["doc_id"]) for pair in pairs]
    condition = f"reason = '{DedupReason.URL_REMOVED}' AND (kept_doc_id = ?::UUID OR list_contains(?::UUID[], doc_id)) ORDER BY url, doc_id"
    return tuple(
        Named(str(found["doc_id"]), found["url"]) for found in _rows(ask, artifact, "decisions", condition, [kept, later], "doc_id, url")
    )


def _of_decontaminate(ask: Ask, artifact: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> Evidence:
    hits = _rows(ask, artifact, "hits", 'doc_id = ?::UUID ORDER BY round, start, "end", task, item_id', [str(row["doc_id"])])
    benchmarks = _parent(ask, artifact, "benchmarks")
    settings = _config(ask, benchmarks)
    count = _ngram_counter(ask, benchmarks, settings, hits)
    matches = tuple(
        ItemMatch(
            hit["task"], hit["item_id"], hit["words"][:WORDS_CHARS], len(hit["words"]), len(hit["words"].split()), count(hit),
            hit["start"], hit["end"], hit["round"],
        ) for hit in hits
    )  # fmt: skip
    return Evidence(tuple(_shares(ask, artifact, row, config, settings, matches)), matches=matches)


def _ngram_counter(
    ask: Ask, benchmarks: str, settings: Mapping[str, Any], hits: Sequence[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], int | None]:
    """A function that counts, for a hit, the n-grams of its item among its words. settings: config of the benchmarks artifact."""
    items = _rows(ask, benchmarks, "items", "list_contains(?::VARCHAR[], item_id)", [sorted({hit["item_id"] for hit in hits})])
    texts = {(item["task"], item["item_id"]): item["texts"] for item in items}
    n, least = settings.get("ngram_words"), settings.get("min_words")

    def count(hit: Mapping[str, Any]) -> int | None:
        own = texts.get((hit["task"], hit["item_id"]))
        return _ngrams(hit["words"], own, n, least) if own and isinstance(n, int) and isinstance(least, int) else None

    return count


def _ngrams(words: str, texts: Sequence[str], n: int, least: int) -> int:
    """The number of occurrences in `words` of n-grams of an item's texts.

    A text of fewer than n words counts as one n-gram. A text of fewer than min(n, `least`) words does not count.
    """
    from stages.text.match.words import hash_words, joined

    found = hash_words(*joined([words, *texts]))
    run, *items = [tuple(found.hashes[a:b].tolist()) for a, b in pairwise(found.offsets.tolist())]
    sizes = [(item, min(n, len(item))) for item in items if len(item) >= min(n, least)]
    grams = {item[i : i + size] for item, size in sizes for i in range(len(item) - size + 1)}
    return sum(run[i : i + size] in grams for size in {size for _, size in sizes} for i in range(len(run) - size + 1))


def _shares(
    ask: Ask, artifact: str, row: Mapping[str, Any], config: Mapping[str, Any], benchmarks: Mapping[str, Any], found: Sequence[ItemMatch]
) -> Iterator[Measured]:
    """Yields how much of a document matched, and the settings that decided. benchmarks: config of the benchmarks artifact."""
    counts = [match.ngrams for match in found if match.ngrams is not None]
    total = sum(counts) if len(counts) == len(found) else None
    yield Measured("ngrams", total, IS, "benchmarks.ngram_words", benchmarks.get("ngram_words"), "words per n-gram")
    source = _parent(ask, artifact, "documents")
    texts = _rows(ask, source, "documents", "doc_id = ?::UUID", [str(row["doc_id"])], "length(text) AS chars")
    chars = texts[0]["chars"] if texts else None
    matched = row.get("chars_cut") or _covered(found)  # the mode "document" cuts nothing
    yield Measured("matched_char_frac", matched / chars if chars else None, unit="share of characters")
    if row["reason"] == "too_little_left":
        least = config.get("min_left_chars")
        yield Measured("chars_left", None if chars is None else chars - matched, BELOW, "decontaminate.min_left_chars", least, "characters")
    else:
        mode = config.get("mode")
        what = "one match drops the document" if mode == "document" else "the matching words are cut"
        yield Measured("hits", row.get("hits"), IS, "decontaminate.mode", mode, what)


def _covered(found: Sequence[ItemMatch]) -> int:
    """The number of characters that at least one match covers."""
    total = end = 0
    for start, stop in sorted((match.start, match.end) for match in found):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
