"""Gives every record of a crawl an id of its own, over all files of all sources, and publishes the shards of extract with these ids.

Guarantee: the first record with an id, in the order of files.json, keeps it. Every later one gets the id that its file and place give
(`fallback_doc_id`), or the next one of its kind that is free. The result follows from the files and their order alone.
Cost: 8 bytes per record in a memory-mapped file, about 150 bytes of memory per record whose id occurs twice, two reads of the column doc_id;
shards with replaced ids are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from stages.corpus.documents.canonical_order import doc_id_bytes, file_array
from stages.corpus.documents.documents import DOCUMENTS, free_doc_id
from stages.corpus.documents.line_table import LINES
from stages.corpus.extract.extract_tables import DECISIONS, ExtractedFile
from stages.record.tables.parquet import count_rows, read_rows, schema, write_rows
from stages.record.tables.shards import Shard, collect

if TYPE_CHECKING:
    import numpy as np

TABLES: Mapping[str, Mapping[str, str]] = {"documents": DOCUMENTS.types, "lines": LINES.types, "decisions": DECISIONS.types}
ODD = (
    0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: both halves of an id decide its key, also of ids made from a time and a machine
)


def fallback_doc_id(identity: str, ordinal: int, taken: Callable[[UUID], bool] = lambda doc_id: False) -> UUID:
    """Returns uuid5 of the file's sha256 (for a remote file, its ETag and size) and the record's ordinal, or the next that is not taken."""
    return free_doc_id(f"{identity.removeprefix('sha256:')}:{ordinal}", taken)


def publish(shards: Sequence[Shard[ExtractedFile]], identities: Sequence[str], scratch: Path, out: Path) -> int:
    """Publishes the tables of the shards in `out`, and replaces ids that an earlier file has.

    Args:
        shards: The shards. No id occurs twice within one.
        identities: The identity of each file of the crawl.
        scratch: A folder for a temporary file.
        out: The artifact's folder.

    Returns:
        The number of replaced ids.
    """
    import numpy as np

    paths = [shard.path / "decisions.parquet" for shard in shards]
    keys = _sorted_keys(paths, scratch / "record_keys.bin")
    repeated = keys[1:][keys[1:] == keys[:-1]]
    given: set[UUID] = set()  # of the ids whose key occurs twice, and the new ones

    def taken(doc_id: UUID) -> bool:
        return doc_id in given or bool(_among(_keys(np.frombuffer(doc_id.bytes, np.uint8).reshape(1, 16)), keys)[0])

    clean: list[Shard[ExtractedFile]] = []
    renamed = 0
    for shard, path in zip(shards, paths, strict=True):
        ids = doc_id_bytes(path)
        rows = np.flatnonzero(_among(_keys(ids), repeated))
        own = {UUID(bytes=ids[row].tobytes()): int(row) for row in rows}
        ordinals = [row["ordinal"] for row in read_rows(path, ["ordinal"])] if not given.isdisjoint(own) else []
        new: dict[UUID, UUID] = {}
        for doc_id, row in own.items():
            if doc_id in given:
                new[doc_id] = fallback_doc_id(identities[shard.index], ordinals[row], taken)
            given.add(new.get(doc_id, doc_id))
        renamed += len(new)
        if new:
            _rewrite(shard, new, out)
        else:
            clean.append(shard)
    for name in TABLES:
        collect(clean, f"{name}.parquet", out)
    return renamed


def _rewrite(shard: Shard[ExtractedFile], new: Mapping[UUID, UUID], out: Path) -> None:
    """Writes the tables of a shard with new ids. new: id -> its replacement."""
    for name, types in TABLES.items():
        changed = ({**row, "doc_id": new.get(row["doc_id"], row["doc_id"])} for row in read_rows(shard.path / f"{name}.parquet"))
        write_rows(out / name / f"{shard.path.name}.parquet", schema(**types), changed)


def _sorted_keys(paths: Sequence[Path], scratch: Path) -> np.ndarray:
    """Returns the keys of all ids of some tables, uint64 [records], sorted, in a memory-mapped file. Equal ids have equal keys."""
    import numpy as np

    keys = file_array(scratch, (sum(map(count_rows, paths)),), np.uint64)
    at = 0
    for path in paths:
        ids = doc_id_bytes(path)
        keys[at : at + len(ids)] = _keys(ids)
        at += len(ids)
    keys.sort()
    return keys


def _keys(ids: np.ndarray) -> np.ndarray:
    """Returns uint64 [records] for ids, uint8 [records, 16]."""
    import numpy as np

    halves = np.ascontiguousarray(ids).view(np.uint64)
    mixed: np.ndarray = halves[:, 0] * np.uint64(ODD) + halves[:, 1]
    return mixed


def _among(keys: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Returns for each key whether it is one of the sorted keys, bool [keys]."""
    import numpy as np

    if not len(ordered):
        return np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    found: np.ndarray = ordered[at] == keys
    return found
