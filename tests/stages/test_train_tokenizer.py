from __future__ import annotations

from pathlib import Path

import pytest

from stages.core.errors import StageError
from stages.train_tokenizer import STAGE
from tests.conftest import run_stage
from tests.stages import made

TEXTS = [f"Word number {i} is {chr(97 + i % 26) * 3} and it returns the length of the argument." for i in range(400)]


def test_trains_on_everything_below_the_limit(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [TEXTS[:200], TEXTS[200:]])
    artifact = run_stage(STAGE, {"vocab_size": 330}, {"documents": docs}, tmp_path / "home")
    assert artifact.summary["train_documents"] == 400
    assert artifact.summary["train_bytes"] == artifact.summary["available_bytes"] == sum(len(t) for t in TEXTS)
    assert artifact.summary["vocab_size"] == 330 and artifact.summary["bytes_per_token"] > 1.5
    assert (artifact.path / "tokenizer.json").is_file() and (artifact.path / "tokenizer_config.json").is_file()


def test_above_the_limit_documents_are_chosen_by_hash_not_first_come(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [["aaa " * 20] * 50 + ["first " * 20], ["zzz " * 20] * 50])
    limit = 2000
    artifact = run_stage(STAGE, {"vocab_size": 268, "max_train_bytes": limit}, {"documents": docs}, tmp_path / "home")
    assert limit - 120 <= artifact.summary["train_bytes"] <= limit
    tokens = (artifact.path / "tokenizer.json").read_text()
    assert '"aaa"' in tokens and '"zzz"' in tokens


def test_too_small_a_corpus_is_refused_with_the_reachable_size(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [TEXTS])
    with pytest.raises(StageError, match="A vocabulary of 20,000 was asked for") as caught:
        run_stage(STAGE, {"vocab_size": 20_000}, {"documents": docs}, tmp_path / "home")
    assert "Set train_tokenizer.vocab_size to at most" in str(caught.value)


def test_no_documents_is_refused(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [[]])
    with pytest.raises(StageError, match="There are no documents to train a tokenizer on"):
        run_stage(STAGE, {"vocab_size": 300}, {"documents": docs}, tmp_path / "home")
