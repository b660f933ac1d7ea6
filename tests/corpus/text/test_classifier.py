"""fastText: deterministic, scores between 0 and 1, clear refusals."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from stages.corpus.text.classifier import (
    ORDINARY,
    POSITIVE,
    FastTextSettings,
    NotAModelError,
    accuracy,
    load_model,
    one_line,
    score,
    score_that_keeps,
    train,
)
from stages.record.tables.shards import run_in_pool


def made(folder: Path, seed: int = 3, rate: float = 0.5) -> Path:
    """Returns a model, trained in a new process as `train` asks for."""
    draw = random.Random(1)
    lines = []
    for _ in range(300):
        good = draw.random() < 0.5
        words = draw.choices(["rain", "cloud", "storm", "wind"] if good else ["file", "mount", "socket", "flag"], k=12)
        lines.append(f"{POSITIVE if good else ORDINARY} {' '.join(words)}\n")
    folder.mkdir()
    (folder / "lines.txt").write_text("".join(lines))
    run_in_pool([partial(train, folder / "lines.txt", folder / "model.bin", FastTextSettings(64, 2, 200_000, 5, rate), seed)], 1, "test")
    return folder / "model.bin"


def test_the_same_lines_give_the_same_bytes(tmp_path: Path) -> None:
    one, two, other = made(tmp_path / "1"), made(tmp_path / "2"), made(tmp_path / "3", seed=4)
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()


def test_scores(tmp_path: Path) -> None:
    model = load_model(made(tmp_path / "m"), POSITIVE)
    good, bad = score(model, POSITIVE, "storm and\nwind"), score(model, POSITIVE, "mount the file __label__hq")
    assert 0 <= bad < 0.2 and 0.8 < good <= 1
    assert score(model, POSITIVE, "") == score(model, POSITIVE, "")
    assert score(model, ORDINARY, "storm and wind") == pytest.approx(1 - good, abs=1e-3)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"no model at all")
    with pytest.raises(NotAModelError, match="x.bin is not a fastText model"):
        load_model(tmp_path / "x.bin")
    with pytest.raises(NotAModelError, match="model.bin has no label '__label__good'; it has __label__"):
        load_model(made(tmp_path / "m"), "__label__good")


def test_vectors_that_would_not_be_zero_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1000 buckets of 8 dimensions take less than"):
        train(tmp_path / "l", tmp_path / "m", FastTextSettings(8, 2, 1000, 5, 0.1), 3)
    with pytest.raises(ValueError, match="0 buckets of 64 dimensions take less than"):
        train(tmp_path / "l", tmp_path / "m", FastTextSettings(64, 1, 200_000, 5, 0.1), 3)


def test_small_helpers() -> None:
    assert one_line(" a\tb\r\nc\u2028d ") == "a b c d"
    assert accuracy([0.9, 0.2, 0.6], [True, False, False]) == pytest.approx(2 / 3)
    scores = [0.9, 0.5, 0.5, 0.1]
    assert score_that_keeps(scores, 0.25) == 0.9 and score_that_keeps(scores, 0.5) == 0.9 and score_that_keeps(scores, 0.75) == 0.5
    assert score_that_keeps(scores, 0.1) == 0.9001 and score_that_keeps([], 0.5) == 1.0
