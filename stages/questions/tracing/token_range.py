"""Finds the tokens of a document that hold some bytes of its text.

Guarantee: exact where the tokens have the bytes of the text. With a normalizer that changes them, such as NFC, the document is encoded again,
and the library says from which characters each token is; if its text is gone from this home, all its tokens are named.
Cost: one read of the document's tokens, with such a normalizer also of the shard's texts.
Source: the offsets of Hugging Face tokenizers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer


ANGSTROM = "\u212b"
"""A character that NFC and NFD, the normal forms of tokenizers that can be imported, replace by another."""


class DocumentTokens(NamedTuple):
    """The tokens of a document: their token file, the first of them, how many they are, and the bytes of the text."""

    shard: int
    start: int
    length: int
    size: int


class EncodedBy(NamedTuple):
    """Folders of artifacts: of encode, and of the tokenizer and the documents that it read."""

    encode: Path
    tokenizer: Path
    documents: Path


def token_range(of: EncodedBy, doc_id: UUID, row: DocumentTokens, first: int, end: int) -> tuple[int, int]:
    """Returns the positions in the token file (from, up to) of the tokens with a byte of the document from `first` up to `end`."""
    import numpy as np

    plain, sizes = _loaded(of.tokenizer)
    if plain.normalizer is not None and ANGSTROM not in plain.normalizer.normalize_str(ANGSTROM):
        return _by_offsets(plain, of.documents, doc_id, row, first, end)
    described = json.loads((of.encode / "tokens.json").read_text(encoding="utf-8"))
    kind = np.dtype("<u2" if described["dtype"] == "uint16" else "<u4")
    ids = np.fromfile(of.encode / "tokens" / f"{row.shard:05d}.bin", kind, row.length, offset=row.start * kind.itemsize)
    ends = np.cumsum(sizes[ids])
    ends -= ends[-1] - row.size  # a tokenizer that puts a blank before the text
    return row.start + int(np.searchsorted(ends, first, "right")), row.start + int(np.searchsorted(ends, end, "left")) + 1


def _by_offsets(plain: Tokenizer, documents: Path, doc_id: UUID, row: DocumentTokens, first: int, end: int) -> tuple[int, int]:
    """Returns the same from the characters that each token is from. The tokens of a document begin with one that has none."""
    text = _text(documents, row.shard, doc_id)
    offsets = [] if text is None else plain.encode(text, add_special_tokens=False).offsets
    if text is None or len(offsets) + 2 != row.length:
        return row.start, row.start + row.length
    begin, stop = (len(text.encode()[:at].decode(errors="ignore")) for at in (first, end))
    within = [number for number, (a, b) in enumerate(offsets) if a < stop and b > begin]
    return (row.start + 1 + within[0], row.start + 2 + within[-1]) if within else (row.start, row.start)


def _text(documents: Path, shard: int, doc_id: UUID) -> str | None:
    """Returns the text of a document of a shard; None if it is gone."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    files = sorted((documents / "documents").glob("*.parquet"))
    if shard >= len(files):
        return None
    table = pq.read_table(files[shard], columns=["doc_id", "text"])
    number = pc.index(table.column("doc_id").combine_chunks().storage, doc_id.bytes).as_py()
    return str(table.column("text")[number].as_py()) if number >= 0 else None


@cache
def _loaded(tokenizer: Path) -> tuple[Tokenizer, np.ndarray]:
    """Returns a tokenizer and the bytes of each token: int64 [V]. A published tokenizer never changes."""
    from stages.tokens.tokenizer.bpe import load_plain
    from stages.tokens.tokenizer.token_bytes import token_bytes

    plain = load_plain(tokenizer / "tokenizer.json")
    return plain, token_bytes(plain)
