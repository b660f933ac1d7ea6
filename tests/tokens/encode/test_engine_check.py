"""The choice of the engine follows the tokenizer: gigatoken where it gives the same ids, else Hugging Face tokenizers with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from stages.tokens.encode.engine_check import Mismatch, adversarial_texts, choose_engine, first_mismatch
from stages.tokens.tokenizer import token_engine
from stages.tokens.tokenizer.bpe import load_plain
from stages.tokens.tokenizer.token_engine import EncodedTexts, open_engine
from tests.made.trained_bpe import train_bpe
from tests.tokens.train_tokenizer.test_tokenizer_mend import like_gpt2, like_llama2

TRAINED = train_bpe(["123 1234 45 the sum of the two other texts, and it's a\n\n"] * 5, 285)
NO_BYTES = "the tokenizer is not a byte-level BPE without a normalizer"
Change = Callable[[dict[str, Any]], object]


def first(described: dict[str, Any]) -> dict[str, Any]:
    """The split of Llama 3's pre-tokenizer."""
    found: dict[str, Any] = described["pre_tokenizer"]["pretokenizers"][0]
    return found


CHANGES: dict[str, tuple[Change, str]] = {
    "a space put before a text": (lambda d: d["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True), "gigatoken gives other ids"),
    "separators removed": (lambda d: first(d).update(behavior="Removed"), "gigatoken gives other ids"),
    "single digits": (
        lambda d: d["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "Digits", "individual_digits": True}), "gigatoken gives other ids",
    ),
    "an unknown pattern": (lambda d: first(d)["pattern"].update(Regex=r"\p{L}+|[^\p{L}]+"), "gigatoken cannot read the tokenizer (Unknown"),
    "a normalizer": (lambda d: d.update(normalizer={"type": "NFC"}), NO_BYTES),
}  # fmt: skip


def written(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def choice(tokenizer: Path) -> tuple[str, str]:
    """Name of the engine, and reason."""
    found = choose_engine(lambda name: open_engine(name, tokenizer))
    return found.engine.name, found.reason


def test_byte_level_tokenizers_are_for_gigatoken(tmp_path: Path) -> None:
    assert choice(written(TRAINED, tmp_path)) == choice(written(like_gpt2(), tmp_path)) == ("gigatoken", "")


@pytest.mark.parametrize("case", CHANGES)
def test_what_gigatoken_would_get_wrong_is_for_tokenizers(tmp_path: Path, case: str) -> None:
    change, reason = CHANGES[case]
    described = json.loads(TRAINED.to_str())
    change(described)
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    name, why = choice(tmp_path / "tokenizer.json")
    assert name == "tokenizers" and why.startswith(reason)


def test_bytes_to_fall_back_on_are_for_tokenizers(tmp_path: Path) -> None:
    assert choice(written(like_llama2(), tmp_path)) == ("tokenizers", NO_BYTES)


def test_special_tokens_that_are_read_as_special_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one text of a real crawl that gigatoken encodes otherwise by default."""
    monkeypatch.setattr(token_engine, "without_special_tokens", lambda text: text)
    assert choice(written(TRAINED, tmp_path)) == ("tokenizers", "gigatoken gives other ids for the text '<|begin_of_text|>'")


def test_every_kind_of_character_is_among_the_texts() -> None:
    found = set("".join(adversarial_texts(["<x>"])))
    assert {*map(chr, range(0x3400)), *map(chr, range(0xF900, 0x10000))} <= found
    assert all(
        any(chr(n) in found for n in range(start, stop))
        for start, stop in [(0x4E00, 0xA000), (0xAC00, 0xD7A4), (0x1F600, 0x1F640), (0x20000, 0x2A6E0)]
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([[5, 6], [7]], None),
        ([[5, 6], [8]], Mismatch(3, 0, 8, 7)),
        ([[5, 9], [8]], Mismatch(1, 1, 9, 6)),
        ([[5], [7]], Mismatch(1, 1, None, 6)),
        ([[5, 6, 6], [7]], Mismatch(1, 2, 6, None)),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, ids: list[list[int]], expected: Mismatch | None) -> None:
    """Texts 1 and 3 of four are compared; their ids are 5 6 and 7."""
    plain = load_plain(written(TRAINED, tmp_path))
    by_id = {number: token for token, number in plain.get_vocab().items()}
    texts = pa.array(["x", by_id[5] + by_id[6], "y", by_id[7]])
    all_ids = [[1, 1, 1], ids[0], [], ids[1]]
    found = EncodedTexts(np.array(sum(all_ids, []), np.uint32), np.cumsum([0, *map(len, all_ids)], dtype=np.int64))
    assert first_mismatch(found, plain, texts, [1, 3]) == expected
    assert first_mismatch(found, plain, texts, []) is None
