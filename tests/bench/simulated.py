"""A simulated signature set for bench_dedup: `python -m tests.bench.simulated FOLDER DOCUMENTS` writes shards, prints the copies planted.

Run as a process of its own, so that making the data does not count in the memory of what is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from stages.record.tables.parquet import schema

BANDS, ROWS, SHARD, SHINGLES, SIMILARITY = 22, 5, 250_000, 100, 0.9
COPIES, BOILERPLATE, EXACT = 0.30, 0.02, 0.05  # shares of the documents
DIFFERENT = 3  # of 100 shingles: J of a copy to its base 97 / 103, of two copies at least 94 / 106


def main() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root, documents = Path(sys.argv[1]), int(sys.argv[2])
    rng = np.random.default_rng(1)
    family = np.arange(documents, dtype=np.int64)
    copies = rng.random(documents) < COPIES
    copies[0] = False
    family[copies] = rng.integers(0, documents, int(copies.sum())) // 5 * 5  # a fifth of the documents have families
    family[rng.random(documents) < BOILERPLATE] = 0
    exact = (rng.random(documents) < EXACT) & (family != np.arange(documents))
    member = np.where((family == np.arange(documents)) | exact, 0, np.arange(documents))  # 0: the base itself or an exact copy of one
    for start in range(0, documents, SHARD):
        rows = slice(start, min(documents, start + SHARD))
        folder = root / f"shard-{start // SHARD:04d}"
        folder.mkdir()
        own, which = family[rows], member[rows]
        keys = (own.astype(np.uint64)[None] * np.uint64(0x9E3779B97F4A7C15) + np.arange(BANDS, dtype=np.uint64)[:, None]) * np.uint64(
            0xFF51AFD7ED558CCD
        )
        other = rng.integers(0, 2**64, keys.shape, np.uint64)
        np.save(
            folder / "bands.npy",
            np.where((which == 0) | (rng.random(keys.shape) < (97 / 103) ** ROWS), keys ^ (keys >> np.uint64(31)), other),
        )
        text = np.where(which == 0, own, which + documents).astype(np.uint64)
        np.save(folder / "hashes.npy", np.stack([text * np.uint64(0x9E3779B97F4A7C15), text], axis=1).view(np.uint8))
        np.save(folder / "sizes.npy", np.full(len(own), SHINGLES, np.int64))
        np.save(folder / "families.npy", np.stack([own, which], axis=1))
        ids = pa.Array.from_buffers(pa.binary(16), len(own), [None, pa.py_buffer(rng.bytes(16 * len(own)))])
        urls = [
            f"https://site{n % 9973}.example/section/{n % 613}/page-{n * 2654435761 % 2**32:x}.html" for n in range(rows.start, rows.stop)
        ]
        table = pa.table({"doc_id": pa.ExtensionArray.from_storage(pa.uuid(), ids), "source": pa.array(["web"] * len(own)), "url": urls},
                         schema=schema(doc_id="uuid", source="string", url="string"))  # fmt: skip
        pq.write_table(table, folder / "documents.parquet")
    sizes = np.bincount(family)
    print(int((sizes[sizes > 0] - 1).sum()))


def simulate(families: np.ndarray) -> np.ndarray:
    """uint64 [documents, SHINGLES], sorted: the shingle sets of documents given as (family, member)."""
    base = families[:, :1].astype(np.uint64) * np.uint64(1_000_003) + np.arange(SHINGLES, dtype=np.uint64)
    sets = (base + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    own = families[:, 1] > 0
    changed = families[own, 1:].astype(np.uint64) * np.uint64(64) + np.arange(DIFFERENT, dtype=np.uint64)
    sets[own, :DIFFERENT] = (changed + np.uint64(1 << 62)) * np.uint64(0xFF51AFD7ED558CCD)
    sets ^= sets >> np.uint64(32)
    return np.sort(sets, axis=1)


if __name__ == "__main__":
    main()
