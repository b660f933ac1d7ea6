"""How a tokenizer divides texts, against figures by hand."""

from __future__ import annotations

import pytest

from stages.text.tokenizer import vocabulary_use as vocabulary_use_module
from stages.text.tokenizer.bpe_training import train_bpe
from stages.text.tokenizer.vocabulary_use import vocabulary_use


@pytest.mark.parametrize("at_once", [1, 10, 1 << 18])
def test_figures_are_those_of_the_texts(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(vocabulary_use_module, "COUNTED_TOKENS", at_once)
    tokenizer = train_bpe(["red red red"] * 5, 265)  # 256 bytes, "ed", "red", " red" and 6 special tokens
    found = vocabulary_use(tokenizer, [("web", "en", "red red"), ("web", "de", "é 12"), ("web", "en", " red" * 12)])
    assert found["groups"] == [
        {"source": "web", "lang": "de", "bytes": 5, "tokens": 5, "words": 2},
        {"source": "web", "lang": "en", "bytes": 55, "tokens": 14, "words": 14},
    ]
    assert found["tokens"] == 259 and found["unused_tokens"] == 259 - 7  # é is two bytes; then space, 1, 2, "red" and " red"
    assert found["rare_tokens"] == 6 and found["rare_below"] == 10
    assert found["longest"][:3] == [" red", "red", "ed"]
    assert found["digits"] == list("1234567890") and found["digits_text"] == "1234567890"
