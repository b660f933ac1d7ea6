"""The trained tokenizer: its size, its sample, the refusal of a small corpus, and imported tokenizers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stages import encode
from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import RecipeError, StageError
from stages.core.run.import_artifact import import_artifact
from stages.text.tokens.bpe import load_chat
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
    with pytest.raises(StageError, match="The vocabulary should have 20,000 tokens") as caught:
        run_stage(STAGE, {"vocab_size": 20_000}, {"documents": docs}, tmp_path / "home")
    assert "Set train_tokenizer.vocab_size to at most" in str(caught.value)


def test_no_documents_is_refused(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [[]])
    with pytest.raises(StageError, match="There are no documents to train a tokenizer on"):
        run_stage(STAGE, {"vocab_size": 300}, {"documents": docs}, tmp_path / "home")


def taken(home: Path, *paths: Path) -> Artifact:
    return import_artifact(home, "train_tokenizer", STAGE, [str(p) for p in paths], "trained elsewhere", lambda event: None).artifact


def test_an_imported_tokenizer_is_the_same_to_the_stages_that_read_it(tmp_path: Path) -> None:
    docs = made.documents(tmp_path / "docs", [TEXTS])
    trained = run_stage(STAGE, {"vocab_size": 330}, {"documents": docs}, tmp_path / "home")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(trained.path / name, folder)
    imported = taken(tmp_path / "other", folder)
    assert imported.manifest["digest"] == trained.manifest["digest"] and imported.summary == {"vocab_size": 330}
    (folder / "tokenizer_config.json").unlink()
    assert taken(tmp_path / "third", folder / "tokenizer.json").manifest["digest"] == trained.manifest["digest"]
    tokens = run_stage(encode.STAGE, {}, {"documents": docs, "tokenizer": trained}, tmp_path / "home")
    assert run_stage(encode.STAGE, {}, {"documents": docs, "tokenizer": imported}, tmp_path / "home").path == tokens.path


def test_a_tokenizer_saved_by_transformers_is_taken(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    docs = made.documents(tmp_path / "docs", [TEXTS])
    trained = run_stage(STAGE, {"vocab_size": 330}, {"documents": docs}, tmp_path / "home")
    AutoTokenizer.from_pretrained(trained.path, local_files_only=True).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "chat_template.jinja").is_file()
    imported = taken(tmp_path / "other", tmp_path / "saved")
    assert (
        AutoTokenizer.from_pretrained(imported.path, local_files_only=True).encode("a word")
        == load_chat(trained.path / "tokenizer.json").encode("a word").ids
    )


def test_a_tokenizer_that_the_pipeline_cannot_use_is_refused_with_every_fault(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        RecipeError, match=r"The pipeline cannot use this tokenizer:\n  - It has no token <\|begin_of_text\|>, .*<\|pad\|>\."
    ) as caught:
        taken(tmp_path / "home", tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer_config.json")
    with pytest.raises(RecipeError, match="There is no tokenizer.json"):
        taken(tmp_path / "home", tmp_path)
