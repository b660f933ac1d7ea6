"""The signatures that dedup publishes of its documents, so that a later crawl can be compared with them.

Guarantee: signatures depend on the texts and the signature settings alone; those of other settings are refused.
Cost: a tenth of the time of dedup. Source: stages/text/match/minhash.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.core.contract.declaration import ExternalFile
from stages.core.contract.errors import RecipeError
from stages.core.tables.canonical_order import Part, text_batches, utf8
from stages.core.tables.documents import document_shards

if TYPE_CHECKING:
    import numpy as np

SIGNATURE_FILES = ("hashes.npy", "sizes.npy", "bands.npy")
SETTINGS = "signatures.json"
PERMUTATION_SEED = 1  # the same in all recipes, so that any two corpora can be compared


def settings_of(shingle_words: int, banding: tuple[int, int] | None) -> dict[str, Any]:
    """Returns the settings that two corpora must share so that their signatures can be compared. banding: None if near duplicates stay."""
    from stages.text.match.minhash import SIGNATURE_VERSION

    if banding is None:
        return {"version": SIGNATURE_VERSION, "near": None}
    near = {"shingle_words": shingle_words, "bands": banding[0], "rows": banding[1], "seed": PERMUTATION_SEED}
    return {"version": SIGNATURE_VERSION, "near": near}


def existing_parts(file: ExternalFile, wanted: Mapping[str, Any]) -> Iterator[Part]:
    """Yields the document files of an existing corpus with their signatures.

    Args:
        file: The artifact that dedup.against names.
        wanted: The signature settings of this run.

    Raises:
        RecipeError: When the artifact has no signatures, or signatures of other settings.
    """
    folder = Path(file.uri)
    where, do = f"dedup.against: {folder}", "Name an artifact that dedup made with the same settings, or build it again with these."
    try:
        made = json.loads((folder / SETTINGS).read_text())
    except FileNotFoundError:
        raise RecipeError("The artifact to compare with holds no signatures.", where=where, do=do) from None
    if made["version"] != wanted["version"] or (wanted["near"] and made["near"] != wanted["near"]):
        raise RecipeError(f"Its signatures were made with {json.dumps(made)}, not {json.dumps(wanted)}.", where=where, do=do)
    for path in document_shards(folder):
        files = {name: (folder / "signatures" / name.partition(".")[0] / f"{path.stem}.npy") for name in SIGNATURE_FILES}
        yield Part(path, files, file.name)


def write_signatures(path: Path, shingle_words: int, banding: tuple[int, int], folder: Path, done: Callable[[int, int], None]) -> None:
    """Writes hashes.npy [rows, 16], sizes.npy [rows] and bands.npy [bands, rows]; calls done(documents, bytes) batch by batch.

    Args:
        path: A documents file.
        shingle_words: Words per shingle.
        banding: (bands, rows); (0, 0) writes only what exact duplicates need.
        folder: Where the three files are written.
        done: Called after each batch of documents.
    """
    import numpy as np

    from stages.text.match.minhash import sketch

    bands, rows = banding
    empty = np.empty(0, np.uint8), np.zeros(1, np.int64)
    sketches = [sketch([], *empty, shingle_words, bands, rows, PERMUTATION_SEED)]
    for _, column in text_batches(path):
        data, starts = utf8(column)
        sketches.append(sketch(column.to_pylist(), data, starts, shingle_words, bands, rows, PERMUTATION_SEED))
        done(len(column), int(starts[-1] - starts[0]))
    for name, arrays in zip(SIGNATURE_FILES, zip(*sketches, strict=True), strict=True):
        np.save(folder / name, np.concatenate(arrays, axis=1 if name == "bands.npy" else 0))


def keep_signatures(source: Path, stays: np.ndarray, folder: Path) -> None:
    """Copies the signatures of the documents that stay. stays: bool [rows]."""
    import numpy as np

    for name in SIGNATURE_FILES:
        array = np.load(source / name, mmap_mode="r")
        np.save(folder / name, np.compress(stays, array, axis=1 if name == "bands.npy" else 0))
