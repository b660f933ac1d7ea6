"""dedup: removes documents that repeat another one, exactly or nearly.

Exact: equal text up to white space. Near: MinHash-LSH over word shingles, every candidate pair verified by exact Jaccard.
Guarantee: of each cluster the first document in canonical order (source, URL, doc_id) stays; a document is removed only with a
verified edge to one that stays; the result does not depend on shards or workers. Cost: 3 MB/s per core for signatures; the
shingle sets of all documents lie in scratch, memory-mapped (8 bytes per word). Source: see stages/text/minhash.py and cluster.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from stages.core import foreign
from stages.core.documents import Ruling, add_books, document_shards, judge_shard
from stages.core.shards import Meter, Shard, collect, run_shards
from stages.core.stage import Artifact, Context, Outcome, Stage, StageConfig
from stages.core.tables import count_rows, read_rows, schema, write_rows

if TYPE_CHECKING:
    import numpy as np

    from stages.text.cluster import Removal

CLUSTERS = {"doc_id": "uuid", "cluster": "int64", "kept_doc_id": "uuid", "jaccard": "float64", "kind": "string"}


class DedupConfig(StageConfig):
    """How alike two documents must be for one of them to go."""

    shingle_words: int = Field(5, ge=1)
    """Words per shingle (FineWeb and datatrove use 5)."""
    bands: int = Field(22, ge=1)
    """LSH bands; with 22 x 5 a pair at the threshold is proposed in more than 999 of 1,000 cases (1 - (1 - 0.8^5)^22)."""
    rows: int = Field(5, ge=1)
    """Signature values per band; bands x rows permutations in all."""
    threshold: float = Field(0.8, gt=0, le=1)
    """Smallest Jaccard similarity of two shingle sets at which the later document is removed."""
    near: bool = True
    """Whether near duplicates are removed; exact ones always are."""


def run(config: DedupConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes documents/, decisions/ and clusters.parquet."""
    import numpy as np

    from stages.text.cluster import find_duplicates

    paths = document_shards(inputs["documents"].path)
    sketches = run_shards(
        sketch_file, [{"path": str(p), "config": config.model_dump(mode="json"), "seed": ctx.seed} for p in paths], ctx, "sketches"
    )
    keys, places = _canonical(paths)
    load = _Shingles(sketches, places)
    signatures = np.concatenate([np.load(s.path / "signatures.npy") for s in sketches])[load.flat]
    hashes = np.concatenate([np.load(s.path / "hashes.npy") for s in sketches])[load.flat]

    def progress(done: int) -> None:
        ctx.progress(done, len(keys), "documents", "clusters")

    removed, verified = find_duplicates(
        [bytes(h) for h in hashes],
        signatures,
        load if config.near else _no_shingles,
        config.bands,
        config.rows,
        config.threshold,
        ctx.seed,
        progress,
    )
    _write_clusters(out / "clusters.parquet", keys, removed)
    tasks: list[dict[str, Any]] = [{"path": str(path), "removed": {}} for path in paths]
    for number, removal in removed.items():
        tasks[places[number][0]]["removed"][str(keys[number][2])] = [removal.kind, str(keys[removal.kept][2]), removal.jaccard]
    shards = run_shards(rule_file, tasks, ctx, "rulings")
    collect(shards, "documents.parquet", out)
    collect(shards, "decisions.parquet", out)
    books = add_books([shard.result for shard in shards])
    kinds = [removal.kind for removal in removed.values()]
    summary = {"documents": books.kept, "text_chars": books.chars_out, "exact_duplicates": kinds.count("exact"),
               "near_duplicates": kinds.count("near"), "pairs_verified": verified}  # fmt: skip
    return Outcome(rows=books.kept, books=books, summary=summary)


def sketch_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Text hashes, signatures and shingle sets of one shard, in row order."""
    import numpy as np

    from stages.text.minhash import shingles, signature, text_hash

    config = DedupConfig.model_validate(task["config"])
    hashes, signatures, sets = [], [], []
    meter.expect(count_rows(Path(task["path"])))
    for row in read_rows(Path(task["path"]), ["text"]):
        hashes.append(np.frombuffer(text_hash(row["text"]), np.uint8))
        own = shingles(row["text"], config.shingle_words) if config.near else np.empty(0, np.uint64)
        sets.append(own)
        signatures.append(signature(own, config.bands * config.rows, task["seed"]))
        meter.add(1, len(row["text"].encode()))
    np.save(folder / "hashes.npy", np.array(hashes, np.uint8).reshape(len(hashes), 32))
    np.save(folder / "signatures.npy", np.array(signatures, np.uint64).reshape(len(hashes), config.bands * config.rows))
    np.save(folder / "shingles.npy", np.concatenate([*sets, np.empty(0, np.uint64)]))
    np.save(folder / "offsets.npy", np.concatenate(([0], np.cumsum([len(s) for s in sets], dtype=np.int64))).astype(np.int64))
    return {"rows": len(hashes)}


def rule_file(folder: Path, task: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Keeps or drops the documents of one shard as decided."""
    from uuid import UUID

    def ruling(row: dict[str, Any]) -> Ruling:
        found = task["removed"].get(str(row["doc_id"]))
        if not found:
            return Ruling()
        kind, kept, likeness = found
        return Ruling(f"{kind}_duplicate", signals={"kept_doc_id": UUID(kept), "jaccard": likeness})

    return judge_shard(Path(task["path"]), folder, ruling, {"kept_doc_id": "uuid", "jaccard": "float64"}, meter)


class _Shingles:
    """Shingle set of a document by canonical number, from the memory-mapped shards; the last few hundred stay at hand."""

    def __init__(self, sketches: Sequence[Shard], places: Sequence[tuple[int, int]]) -> None:
        import numpy as np

        self.places = places
        self.values = [np.load(s.path / "shingles.npy", mmap_mode="r") for s in sketches]
        self.offsets = [np.load(s.path / "offsets.npy") for s in sketches]
        starts = np.concatenate(([0], np.cumsum([len(o) - 1 for o in self.offsets])))
        self.flat = np.array([starts[shard] + row for shard, row in places], np.int64)
        self.read = lru_cache(maxsize=512)(self._read)

    def __call__(self, number: int) -> np.ndarray:
        return self.read(number)

    def _read(self, number: int) -> np.ndarray:
        import numpy as np

        shard, row = self.places[number]
        return np.array(self.values[shard][self.offsets[shard][row] : self.offsets[shard][row + 1]])


def _no_shingles(number: int) -> np.ndarray:
    import numpy as np

    return np.empty(0, np.uint64)


def _canonical(paths: Sequence[Path]) -> tuple[list[tuple[str, str, Any]], list[tuple[int, int]]]:
    """((source, url, doc_id), (shard, row)) of all documents in canonical order."""
    entries = []
    for shard, path in enumerate(paths):
        for number, row in enumerate(read_rows(path, ["source", "url", "doc_id"])):
            entries.append(((row["source"], row["url"], row["doc_id"]), (shard, number)))
    entries.sort()
    return [key for key, _ in entries], [place for _, place in entries]


def _write_clusters(path: Path, keys: Sequence[tuple[str, str, Any]], removed: Mapping[int, Removal]) -> None:
    """One row per member of a cluster, the kept one first (kind "kept"); clusters numbered in canonical order."""
    members: dict[int, list[int]] = {}
    for number, removal in removed.items():
        members.setdefault(removal.kept, []).append(number)
    rows = []
    for cluster, kept in enumerate(sorted(members)):
        rows.append({"doc_id": keys[kept][2], "cluster": cluster, "kept_doc_id": keys[kept][2], "jaccard": 1.0, "kind": "kept"})
        for number in sorted(members[kept]):
            why = removed[number]
            rows.append(
                {"doc_id": keys[number][2], "cluster": cluster, "kept_doc_id": keys[kept][2], "jaccard": why.jaccard, "kind": why.kind}
            )
    write_rows(path, schema(**CLUSTERS), rows)


STAGE = Stage(
    name="dedup",
    config=DedupConfig,
    run=run,
    inputs={"documents": "documents"},
    output="documents",
    versions=("exact text, MinHash-LSH verified by exact Jaccard",),
    distributions=("datasketch", "xxhash", "numpy", "pyarrow"),
    adopt=foreign.ADOPTION,
)
