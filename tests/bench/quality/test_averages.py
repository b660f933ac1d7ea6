"""The benchmark of averaged weights: the last checkpoints are averaged, and the mean of one is the trained model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stages.training.checkpoints.checkpoint import consolidate
from tests.bench.quality import __main__ as bench
from tests.bench.quality.averages import mean, rows
from tests.bench.quality.contestants import Trial
from tests.bench.quality.test_epochs import SMALL
from tests.bench.quality.wikitext import prepare
from tests.made.real import VARIABLE


@pytest.mark.bench
def test_the_last_checkpoints_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere")
    corpus = prepare(tmp_path / "corpus")
    np.fromfile(corpus.folder / "validation.bin", "<u2")[:2000].tofile(corpus.folder / "validation.bin")
    changes = {**SMALL, "milestone_every_steps": 1}
    wanted = bench.Wanted("loam, Muon", 3 * 4096, 1, json.dumps(changes))
    assert not bench.train([wanted], corpus, tmp_path, together=1)
    trial = Trial(corpus, wanted.tokens, 1, wanted.folder(tmp_path, corpus), changes)
    found = rows(trial, [1, 2, 3, 4])
    assert [(row["checkpoints"], row["the first of them"]) for row in found] == [
        (1, "checkpoint"), (2, "step-0000000002"), (3, "step-0000000001"),
    ], "of four there are too few"  # fmt: skip
    trained = json.loads((trial.folder / "result.json").read_text())["bits_per_byte"]
    assert float(found[0]["bits per byte"]) == pytest.approx(trained, rel=2e-3), "one checkpoint is the trained model"
    assert len({row["bits per byte"] for row in found}) == 3
    out = trial.folder / "out"
    first, last = consolidate(out / "milestones/step-0000000002"), consolidate(out / "checkpoint")
    both = mean([out / "milestones/step-0000000002", out / "checkpoint"])
    assert both.keys() == last.keys()
    for name, value in both.items():
        np.testing.assert_allclose(value.numpy(), (first[name].numpy() + last[name].numpy()) / 2, rtol=1e-6, atol=1e-8)
