"""dedup: removes exact and near duplicates of documents and, if the recipe says so, lines that a source repeats.

Two documents are exact duplicates if their texts are equal up to white space. Near duplicates are found by MinHash-LSH over word
shingles; exact Jaccard similarity verifies every candidate pair.

Guarantee: documents are decided in canonical order (source priority, URL, doc_id). A document is removed as a duplicate only with a
verified edge to a kept document, or to one that a takedown removes with its copies (`remove_copies_of`). The result does not depend on
shards or workers. With `against`, the documents of existing corpora come first and all stay. The stage compares a new crawl with their
published signatures and reads only those of their texts that share a bucket.
Cost: about 17 MB/s of text per core, including reading and writing Parquet; signatures take a tenth of the time. Memory is about 400
bytes per document, whatever the length of the texts (10 M documents: 3.9 GiB measured, the budget is 6). Scratch holds the shingle sets
of documents that share a bucket (8 bytes per word).
Source: stages/text/match/minhash.py and stages/text/match/clustering.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from stages.core.contract.declaration import Artifact, Context, NamedArtifacts, Outcome, Stage
from stages.core.contract.errors import StageError
from stages.core.contract.side_table import types_of
from stages.core.tables import import_documents
from stages.core.tables.canonical_order import Corpus, Part, canonical, file_array, text_batches, utf8
from stages.core.tables.dedup_tables import (
    PAIRS,
    REASONS,
    REPEATS,
    REPEATS_CUT,
    SIGNALS,
    TABLES,
    URL_REMOVED,
    DedupReason,
    Found,
    write_clusters,
    write_ruling,
)
from stages.core.tables.documents import Document, JudgedShard, Ruling, add_record_counts, document_shards, judge_shard, matched_by_pattern
from stages.core.tables.parquet import count_rows, read_rows, schema, write_rows
from stages.core.tables.shards import Meter, Shard, collect, run_shards
from stages.settings import StageConfig
from stages.signatures import SETTINGS, SIGNATURE_FILES, existing_parts, keep_signatures, settings_of, write_signatures

if TYPE_CHECKING:
    import numpy as np

    from stages.text.match.clustering import Verdicts


class RepeatsConfig(StageConfig):
    """Cuts lines or paragraphs that occur too often in a source. Only kept documents count; equality ignores white space."""

    unit: Literal["line", "paragraph"] = "line"
    """The unit to count and cut; empty lines separate paragraphs."""
    max_per_source: int = Field(1, ge=1)
    """Occurrences to keep in each source, the first in canonical order. 1 is CCNet's rule (Wenzek et al. 2020)."""
    min_chars: int = Field(30, ge=1)
    """Shorter lines or paragraphs are never cut (characters; a guess that keeps braces, bullets and short headings)."""
    min_left_chars: int = Field(200, ge=1)
    """A document that is shorter than this after a cut is dropped (characters)."""


class DedupConfig(StageConfig):
    """Settings of the dedup stage: which documents count as duplicates and which of them stays."""

    shingle_words: int = Field(5, ge=1, le=1000)
    """Words per shingle (FineWeb and datatrove use 5)."""
    bands: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = 22
    """LSH bands. With 22 x 5, LSH proposes a pair at the threshold in more than 999 of 1,000 cases (1 - (1 - 0.8^5)^22). auto takes bands
    and rows from datasketch's search for the threshold. That search weights both errors equally and proposes 40 % of the pairs at the
    threshold (9 x 13 of 128)."""
    rows: int | None = Field(None, ge=1, le=100)
    """Signature values per band; a signature has bands x rows values. null means 5, and with bands: auto the result of the search."""
    permutations: int | None = Field(None, ge=2, le=1024)
    """Maximum number of signature values for bands: auto; null means 128 (datasketch's default)."""
    threshold: float = Field(0.8, gt=0, le=1)
    """The later document of a pair is removed if the Jaccard similarity of their shingle sets is at least this."""
    near: bool = True
    """Whether near duplicates are removed. Exact duplicates are always removed."""
    source_priority: tuple[str, ...] = ()
    """Sources in order of preference: of two duplicates, the one from the earlier source stays. Other sources follow, sorted by name."""
    against: NamedArtifacts = ()
    """Existing corpora: dedup artifacts by name ("dedup-3") or folder. Documents that repeat one of theirs are removed."""
    remove_copies_of: tuple[str, ...] = ()
    """URLs whose documents are removed with all their copies, for takedowns; % matches any characters. A kept document that duplicates one
    of them, exactly or nearly, is removed too, and so are the documents removed as its duplicates. Do not name the URLs in
    filter.url.remove as well: dedup cannot find copies of a document that the filter has removed."""
    repeats: RepeatsConfig | None = None
    """Cut lines or paragraphs that a source repeats; null keeps them."""

    @model_validator(mode="after")
    def _auto_or_given(self) -> DedupConfig:
        if self.bands == "auto" and self.rows is not None:
            raise ValueError("rows is given, but with bands: auto it is searched for; take rows out or give bands a number")
        if self.bands != "auto" and self.permutations is not None:
            raise ValueError("permutations is only for bands: auto; take it out (bands x rows decide)")
        return self

    def banding(self) -> tuple[int, int]:
        """Returns (bands, rows)."""
        from stages.text.match.minhash import best_bands

        return best_bands(self.threshold, self.permutations or 128) if self.bands == "auto" else (self.bands, self.rows or 5)

    def signature_banding(self) -> tuple[int, int]:
        """Returns (bands, rows), or (0, 0) if near duplicates stay."""
        return self.banding() if self.near else (0, 0)

    def signature_settings(self) -> dict[str, Any]:
        """Returns the settings that two corpora must share so that their signatures can be compared."""
        return settings_of(self.shingle_words, self.banding() if self.near else None)


def run(config: DedupConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes documents/, decisions/, clusters.parquet, pairs.parquet, signatures/ and, with `repeats`, repeats/."""
    existing = [part for file in ctx.files("against") for part in existing_parts(file, config.signature_settings())]
    paths = document_shards(inputs["documents"].path)
    sizes = [path.stat().st_size for path in paths]
    tasks = [{"path": str(path), "config": config.model_dump(mode="json")} for path in paths]
    sketches = run_shards(sketch_file, tasks, ctx, "sketches", sizes)
    parts = [*existing, *(Part(p, {n: s.path / n for n in SIGNATURE_FILES}, "") for p, s in zip(paths, sketches, strict=True))]
    corpus = canonical(parts, config.source_priority)
    named = _named(corpus, len(existing), [shard.path for shard in sketches] if config.remove_copies_of else [])
    verdicts, found = _decide(config, corpus, named, out, ctx)
    write_clusters(out / "clusters.parquet", corpus, found)
    for i, (task, sketch) in enumerate(zip(tasks, sketches, strict=True), start=len(existing)):
        ruling = write_ruling(ctx.scratch / f"ruling-{i}.npy", corpus, i, found)
        task |= {"signatures": str(sketch.path), "ruling": str(ruling)}
    if config.repeats:
        _find_repeats(config.repeats, corpus, len(existing), tasks, ctx)
    shards = run_shards(rule_file, tasks, ctx, "rulings", sizes)
    matched = matched_by_pattern(config.remove_copies_of, [s.result["matched"] for s in sketches], "dedup.remove_copies_of", ctx)
    return _publish(shards, config, verdicts, matched, out)


def sketch_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Writes text hashes, band keys and shingle counts of one documents file in row order, and which URLs remove_copies_of names."""
    path, config = Path(task["path"]), DedupConfig.model_validate(task["config"])
    meter.expect(count_rows(path))
    write_signatures(path, config.shingle_words, config.signature_banding(), folder, meter.add)
    return {"matched": _match(path, config.remove_copies_of, folder) if config.remove_copies_of else {}}


def shingle_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Writes the sorted shingle sets of the wanted rows of one documents file.

    Raises:
        StageError: When a text of an existing corpus does not have the hash that its signature records.
    """
    import numpy as np

    from stages.text.match.minhash import distinct, shingle_lists, text_hash

    wanted, hashes = np.load(task["wanted"]), np.load(task["hashes"], mmap_mode="r")
    path, sets = Path(task["path"]), [np.empty(0, np.uint64)]
    meter.expect(len(wanted))
    for start, column in text_batches(path, wanted):
        rows = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + len(column))]
        chosen = column.take(rows - start)
        if task["corpus"]:
            for row, text in zip(rows.tolist(), chosen.to_pylist(), strict=True):
                if text_hash(text) != hashes[row].tobytes():
                    what, do = "A text of an existing corpus is not the one that its signature was made of.", "Rebuild that corpus."
                    raise StageError(what, where=f"row {row} of {path}", do=do)
        data, starts = utf8(chosen)
        values, offsets = shingle_lists(data, starts, task["shingle_words"])
        sets += [distinct(values[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
        meter.add(len(rows), int(starts[-1] - starts[0]))
    np.save(folder / "sets.npy", np.concatenate(sets))
    np.save(folder / "sizes.npy", np.array([len(s) for s in sets[1:]], np.int64))
    return {}


def repeats_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Writes every line or paragraph of the kept documents of one file, sorted by key; documents have their canonical numbers."""
    import numpy as np

    from stages.text.quality.repeated_lines import by_key, occurrences

    config = DedupConfig.model_validate(task["config"])
    assert config.repeats
    path, stays, numbers = Path(task["path"]), np.load(task["ruling"])["reason"] == 0, np.load(task["numbers"])
    found: list[np.ndarray] = []
    meter.expect(count_rows(path))
    for row, document in enumerate(read_rows(path, ["source", "text"])):
        if stays[row]:
            unit, least = config.repeats.unit, config.repeats.min_chars
            found.append(occurrences(document["text"], document["source"], int(numbers[row]), unit, least))
        meter.add(1, len(document["text"]))
    np.save(folder / "occurrences.npy", by_key(found))
    return {}


def rule_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> JudgedShard:
    """Writes the documents and decisions of one file as decided, and the signatures of the kept documents."""
    import numpy as np

    from stages.text.quality.repeated_lines import SEPARATORS, without

    config = DedupConfig.model_validate(task["config"])
    rulings, rows = np.load(task["ruling"]), count()
    cut: dict[int, set[int]] = {}
    firsts: dict[int, list[tuple[int, int]]] = {}
    repeats: list[dict[str, Any]] = []
    for row, part, rank, times in np.load(task["cuts"]).tolist() if config.repeats else []:
        if rank == 0:
            firsts.setdefault(row, []).append((part, times))
        if config.repeats and rank >= config.repeats.max_per_source:
            cut.setdefault(row, set()).add(part)

    def ruling(row: Document) -> Ruling:
        at = next(rows)
        reason, kept, similarity = rulings[at].tolist()
        if reason:
            return Ruling(REASONS[reason], signals={"kept_doc_id": kept, "jaccard": similarity})
        if not config.repeats:
            return Ruling()
        pieces = row["text"].split(SEPARATORS[config.repeats.unit])
        for part, times in firsts.get(at, []):
            repeats.append({"source": row["source"], "text": pieces[part], "times": times, "doc_id": row["doc_id"]})
        text, parts = without(row["text"], config.repeats.unit, cut.get(at, set())), len(cut.get(at, ()))
        if parts and len(text) < config.repeats.min_left_chars:
            return Ruling(DedupReason.TOO_LITTLE_LEFT, signals={"parts_cut": parts})
        return Ruling(text=text, note=REPEATS_CUT, signals={"parts_cut": parts})

    result = judge_shard(Path(task["path"]), folder, ruling, types_of(SIGNALS), meter)
    if config.repeats:
        write_rows(folder / "repeats.parquet", schema(**REPEATS.types), repeats)
        write_signatures(
            folder / "documents.parquet", config.shingle_words, config.signature_banding(), folder, lambda documents, size_bytes: None
        )
    else:
        keep_signatures(Path(task["signatures"]), rulings["reason"] == 0, folder)
    return result


def _match(path: Path, patterns: Sequence[str], folder: Path) -> dict[str, int]:
    """Writes matched.npy, bool [rows]: whether a pattern matches the URL; returns the number of matches per pattern."""
    import numpy as np

    from stages.text.quality.url_patterns import matches

    urls = [row["url"] or "" for row in read_rows(path, ["url"])]
    by_pattern = {pattern: np.array([matches(url, [pattern]) for url in urls], bool) for pattern in patterns}
    np.save(folder / "matched.npy", np.logical_or.reduce(list(by_pattern.values())))
    return {pattern: int(found.sum()) for pattern, found in by_pattern.items()}


def _named(corpus: Corpus, own: int, sketches: Sequence[Path]) -> np.ndarray:
    """Returns the new documents that remove_copies_of names, bool [documents].

    Args:
        corpus: All documents in canonical order.
        own: Number of the first new part.
        sketches: Result folders of `sketch_file`; empty without patterns.
    """
    import numpy as np

    named = np.zeros(len(corpus.numbers), bool)
    for i, folder in enumerate(sketches, start=own):
        named[corpus.numbers[corpus.rows(i)]] = np.load(folder / "matched.npy")
    return named


def _decide(config: DedupConfig, corpus: Corpus, named: np.ndarray, out: Path, ctx: Context) -> tuple[Verdicts, Found]:
    """Decides which documents stay and writes the verified edges to pairs.parquet; returns the verdicts and what is recorded of them."""
    import numpy as np

    from stages.text.match.clustering import decide, first_copies, group_bands, in_buckets, undecided

    first = first_copies(corpus.load("hashes.npy"))
    documents, bands = len(first), config.signature_banding()[0]
    eligible = (first == np.arange(documents)) & (corpus.load("sizes.npy") > 0)
    buckets = file_array(ctx.scratch / "buckets.bin", (bands, documents), np.uint32)

    def keys_of(band: int) -> np.ndarray:
        ctx.progress(band, bands, "bands", "grouping")
        return corpus.load("bands.npy", band)

    total = group_bands(keys_of, eligible, corpus.known, buckets)
    alike = np.zeros(documents, bool)  # has the same text as a named document
    alike[first[named]] = True
    alike, taken = alike[first], np.zeros(documents, bool)
    sets, offsets = _shingle_sets(config, corpus, in_buckets(buckets), ctx)
    verdicts = undecided(documents)

    def pairs() -> Iterator[dict[str, Any]]:
        def progress(done: int) -> None:
            ctx.progress(done, documents, "documents", "comparing candidates")

        for edges in decide(buckets, total, first, corpus.known, sets, offsets, config.threshold, verdicts, progress):
            taken[edges.earlier[alike[edges.later]]] = True
            for later, earlier, similarity in zip(edges.later.tolist(), edges.earlier.tolist(), edges.jaccard.tolist(), strict=True):
                names = {"doc_id": corpus.ids[later].tobytes(), "kept_doc_id": corpus.ids[earlier].tobytes()}
                yield names | {"jaccard": similarity, "corpus": corpus.corpus_of(earlier)}

    write_rows(out / "pairs.parquet", schema(**PAIRS.types), pairs())
    taken |= alike & verdicts.stays
    taken[: corpus.known] = False  # belongs to another artifact; `loam lineage affected` names it
    return verdicts, Found(verdicts.kept_by, verdicts.jaccard, first, named, taken)


def _shingle_sets(config: DedupConfig, corpus: Corpus, needed: np.ndarray, ctx: Context) -> tuple[np.ndarray, np.ndarray]:
    """Returns (sets, offsets): the shingle sets of the needed documents in canonical order, memory-mapped from scratch.

    Args:
        corpus: All documents in canonical order.
        needed: bool [documents]: whether a document shares a bucket.

    Returns:
        sets: uint64, the shingle hashes of one document after another.
        offsets: int64 [documents + 1], where the set of each document begins.
    """
    import numpy as np

    from stages.text.match.clustering import copy_sets, release

    tasks: list[dict[str, Any]] = []
    wanted = [np.flatnonzero(needed[corpus.numbers[corpus.rows(i)]]) for i in range(len(corpus.parts))]
    for number, (part, rows) in enumerate(zip(corpus.parts, wanted, strict=True)):
        np.save(ctx.scratch / f"wanted-{number}.npy", rows)
        tasks.append({"path": str(part.documents), "wanted": str(ctx.scratch / f"wanted-{number}.npy"), "corpus": part.corpus,
                      "hashes": str(part.arrays["hashes.npy"]), "shingle_words": config.shingle_words})  # fmt: skip
    shards = run_shards(shingle_file, tasks, ctx, "shingles", [len(rows) for rows in wanted])
    sizes = np.zeros(len(needed), np.int64)
    numbers = [corpus.numbers[corpus.rows(i)][rows] for i, rows in enumerate(wanted)]
    for shard, own in zip(shards, numbers, strict=True):
        sizes[own] = np.load(shard.path / "sizes.npy")
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    sets = file_array(ctx.scratch / "sets.bin", (int(offsets[-1]),), np.uint64)
    for shard, own in zip(shards, numbers, strict=True):
        starts = np.concatenate(([0], np.cumsum(sizes[own]))).astype(np.int64)
        copy_sets(np.load(shard.path / "sets.npy", mmap_mode="r"), starts, own, sets, offsets)
        release(sets)
    return sets, offsets


def _find_repeats(config: RepeatsConfig, corpus: Corpus, own: int, tasks: Sequence[dict[str, Any]], ctx: Context) -> None:
    """Adds to each task the file of the repeats in its documents: (row, part, rank, times). own: number of the first new part."""
    import numpy as np

    from stages.text.quality.repeated_lines import repeated

    for i, task in enumerate(tasks):
        task["numbers"], task["cuts"] = str(ctx.scratch / f"numbers-{i}.npy"), str(ctx.scratch / f"cuts-{i}.npy")
        np.save(task["numbers"], corpus.numbers[corpus.rows(own + i)])
    shards = run_shards(repeats_file, tasks, ctx, "repeats")
    found = repeated([np.load(s.path / "occurrences.npy", mmap_mode="r") for s in shards], config.max_per_source)
    rows = corpus.order[np.concatenate([r.number for r in found])]
    columns = [np.concatenate([getattr(r, name) for r in found]) for name in ("part", "rank", "times")]
    for i, task in enumerate(tasks):
        start, end = corpus.starts[own + i], corpus.starts[own + i + 1]
        mine = (rows >= start) & (rows < end)
        np.save(task["cuts"], np.stack([rows[mine] - start, *(column[mine] for column in columns)], axis=1).astype(np.int64))


def _publish(shards: Sequence[Shard[JudgedShard]], config: DedupConfig, verdicts: Verdicts, matched: dict[str, int], out: Path) -> Outcome:
    from stages.text.match.minhash import proposed_frac

    for name in ("documents.parquet", "decisions.parquet", *(["repeats.parquet"] if config.repeats else []), *SIGNATURE_FILES):
        collect(shards, name, out / "signatures" if name in SIGNATURE_FILES else out)
    (out / SETTINGS).write_text(json.dumps(config.signature_settings()) + "\n")
    record_counts = add_record_counts([shard.result for shard in shards])
    exact, near, *old = (record_counts.dropped.get(reason, 0) for reason in REASONS[1:URL_REMOVED])
    proposed, compared, verified = verdicts.counts.tolist()
    summary = {"documents": record_counts.kept + record_counts.changed, "text_chars": record_counts.chars_out, "exact_duplicates": exact, "near_duplicates": near,
               "duplicates_of_existing": sum(old), "pairs_proposed": proposed, "pairs_compared": compared, "pairs_verified": verified,
               "proposed_at_threshold_frac": round(proposed_frac(config.threshold, *config.banding()), 4) if config.near else None}  # fmt: skip
    summary |= {"chars_of_repeats_cut": record_counts.chars_removed} if config.repeats else {}
    if config.remove_copies_of:
        summary |= {
            "removed_by_url": record_counts.dropped.get(DedupReason.URL_REMOVED, 0),
            "removed_copies": record_counts.dropped.get(DedupReason.COPY_OF_REMOVED, 0),
        } | matched
    return Outcome(rows=record_counts.kept + record_counts.changed, record_counts=record_counts, summary=summary)


STAGE = Stage(
    name="dedup",
    config=DedupConfig,
    run=run,
    inputs={"documents": "filter"},
    output="documents",
    tables=TABLES,
    does="exact and MinHash duplicates, each pair verified",
    versions=(
        "exact text, MinHash-LSH verified by exact Jaccard",
        "words as under NFKC_Casefold; bands out of core; pairs and signatures published; existing corpora; repeated lines",
        "pages to remove by recipe, with their copies",
    ),
    distributions=("datasketch", "xxhash", "numpy", "numba", "pyarrow"),
    importer=import_documents.IMPORTER,
)
