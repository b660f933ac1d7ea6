"""Which tokens hold a span of a document's text: a tokenizer with a normalizer, whose tokens have other bytes than the text."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from stages.questions.tracing.trace_text import DocumentTokens, EncodedBy, token_range
from stages.record.contract.declaration import Artifact
from stages.tokens.encode.stage import STAGE as ENCODE
from stages.tokens.tokenizer.bpe import write_config
from stages.tokens.tokenizer.token_bytes import token_bytes
from stages.tokens.train_tokenizer.tokenizer_check import judge_tokenizer
from stages.tokens.train_tokenizer.tokenizer_mend import MendedTokenizer
from tests.conftest import run_stage
from tests.made.published_models import llama2_tokenizer, qwen3_tokenizer
from tests.stages import made

WORDS = [
    "Cafe\u0301",
    "the",
    "\u2126hm",
    "length",
    "\u0958\u0958",
    "e\u0301e\u0301e\u0301",
    "function",
    "\u1100\u1161\u11a8",
    "\u6f22\u5b57",
    "it's",
    "12",
]
"""Some are shorter in NFC, and U+0958 is longer, so the sizes of text and tokens differ by an amount that changes along the text."""


def encoded(root: Path, tokenizer: Tokenizer, texts: list[str]) -> tuple[EncodedBy, Artifact]:
    found = judge_tokenizer(tokenizer.to_str())
    assert isinstance(found, MendedTokenizer), found
    (root / "tokenizer").mkdir(parents=True)
    (root / "tokenizer" / "tokenizer.json").write_text(found.text)
    write_config(root / "tokenizer", found.tokens)
    documents = made.documents(root / "docs", [["another text"], texts])
    inputs = {"documents": documents, "tokenizer": made.artifact(root / "tokenizer", "tokenizer")}
    tokens = run_stage(ENCODE, {}, inputs, root / "home")
    return EncodedBy(tokens.path, root / "tokenizer", documents.path), tokens


@pytest.mark.parametrize("make", [qwen3_tokenizer, llama2_tokenizer])
def test_the_tokens_of_every_word_are_found(tmp_path: Path, make: type[Tokenizer]) -> None:
    """The oracle is the normalized text: its n-th word, in the bytes of the tokens. Catches: bytes of the text taken for those of the tokens."""
    from stages.record.tables.parquet import read_rows

    text, tokenizer = " ".join(WORDS), make()  # type: ignore[call-arg]
    of, tokens = encoded(tmp_path, tokenizer, ["first", text])
    row = next(r for r in read_rows(tokens.path / "spans" / "00001.parquet") if r["bytes"] == len(text.encode()))
    place = DocumentTokens(row["shard"], row["start"], row["length"], row["bytes"])
    normal = text if make is llama2_tokenizer else unicodedata.normalize("NFC", text)
    ids = tokenizer.encode(normal, add_special_tokens=False).ids
    ends = np.cumsum(token_bytes(tokenizer)[ids])
    ends -= ends[-1] - len(normal.encode())  # the blank that Llama 2 puts before a text
    for number, word in enumerate(WORDS):
        begin = len("".join(f"{one} " for one in WORDS[:number]).encode())
        found = token_range(of, row["doc_id"], place, begin, begin + len(word.encode()))
        at = len("".join(f"{one} " for one in normal.split(" ")[:number]).encode())
        first = int(np.searchsorted(ends, at, "right"))
        last = int(np.searchsorted(ends, at + len(normal.split(" ")[number].encode()), "left"))
        assert found == (row["start"] + 1 + first, row["start"] + 2 + last), word


def test_a_document_that_is_gone_names_all_its_tokens(tmp_path: Path) -> None:
    from stages.record.tables.parquet import read_rows

    of, tokens = encoded(tmp_path, qwen3_tokenizer(), [" ".join(WORDS)])
    row = next(iter(read_rows(tokens.path / "spans" / "00001.parquet")))
    place = DocumentTokens(row["shard"], row["start"], row["length"], row["bytes"])
    everything = (row["start"], row["start"] + row["length"])
    assert token_range(of._replace(documents=tmp_path / "gone"), row["doc_id"], place, 0, 4) == everything
    assert token_range(of, row["doc_id"], place, 0, 4) != everything
