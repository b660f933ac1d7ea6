"""The token files and spans of documents: every document comes back, with any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import StageError
from stages.core.tables.parquet import read_rows
from stages.encode import STAGE
from stages.text.items.chat import BOS, EOS, SPECIAL_TOKENS
from stages.text.tokenizer.bpe import load_plain, save
from stages.text.tokenizer.bpe_training import train_bpe
from tests.conftest import run_stage
from tests.stages import made

SHARDS = [["The sum of two.", "", "Ein <|eot_id|> Häuschen\n\n  x"], [("wiki", "Other 1234 text 漢字.")]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Artifact:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    save(train_bpe(["the sum of the two other texts"] * 5, 270), folder)
    return made.artifact(folder, "tokenizer")


def test_every_document_comes_back_from_its_span(tmp_path: Path, tokenizer: Artifact) -> None:
    docs = made.documents(tmp_path / "docs", SHARDS)
    artifact = run_stage(STAGE, {}, {"documents": docs, "tokenizer": tokenizer}, tmp_path / "home")
    described = json.loads((artifact.path / "tokens.json").read_text())
    plain = load_plain(tokenizer.path / "tokenizer.json")
    assert described["dtype"] == "uint16" and described["vocab_size"] == 270
    for number in range(len(SHARDS)):
        ids = np.fromfile(artifact.path / "tokens" / f"{number:05d}.bin", dtype="<u2")
        spans = list(read_rows(artifact.path / "spans" / f"{number:05d}.parquet"))
        originals = list(read_rows(docs.path / "documents" / f"{number:05d}.parquet"))
        assert described["shards"][number]["tokens"] == len(ids) == sum(s["length"] for s in spans)
        assert [s["doc_id"] for s in spans] == [o["doc_id"] for o in originals]
        for span, original in zip(spans, originals, strict=True):
            piece = ids[span["start"] : span["start"] + span["length"]].tolist()
            assert (piece[0], piece[-1]) == (plain.token_to_id(BOS), plain.token_to_id(EOS)) == (described["bos"], described["eos"])
            assert not {plain.token_to_id(t) for t in SPECIAL_TOKENS} & set(piece[1:-1])
            assert plain.decode(piece[1:-1]) == original["text"]
            assert span["bytes"] == len(original["text"].encode()) and span["shard"] == number and span["source"] == original["source"]
    assert artifact.manifest["rows"] == 4 and artifact.manifest["tokens"] == sum(s["tokens"] for s in described["shards"])
    assert artifact.manifest["record_counts"]["kept"] == 4


def test_workers_do_not_change_the_bytes(tmp_path: Path, tokenizer: Artifact) -> None:
    docs = made.documents(tmp_path / "docs", SHARDS)
    inputs = {"documents": docs, "tokenizer": tokenizer}
    digests = {run_stage(STAGE, {}, inputs, tmp_path / f"home{n}", runtime={"workers": n}).manifest["digest"] for n in (1, 2)}
    assert len(digests) == 1


def test_no_documents_is_refused(tmp_path: Path, tokenizer: Artifact) -> None:
    docs = made.documents(tmp_path / "docs", [[]])
    with pytest.raises(StageError, match="There are no documents to encode"):
        run_stage(STAGE, {}, {"documents": docs, "tokenizer": tokenizer}, tmp_path / "home")
