"""The benchmark of few data: an ensemble is the average of probabilities, of the models that were trained, and is computed once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.bench.quality import __main__ as bench
from tests.bench.quality import epochs
from tests.bench.quality.contestants import Trial
from tests.bench.quality.epochs import TIMES, Arm, arms, ensemble_nats, exported, measured
from tests.bench.quality.wikitext import Corpus, prepare
from tests.made.real import VARIABLE

SMALL = {
    "warmup_steps": 1, "model.num_hidden_layers": 2, "model.conv_layers": [0], "model.hidden_size": 64, "model.head_dim": 32,
    "model.num_attention_heads": 4, "model.intermediate_size": 64,
}  # fmt: skip


def test_every_arm_but_the_first_has_the_same_budget() -> None:
    known = arms(1000, {"precision": "fp32"})
    assert [arm.models * arm.tokens for arm in known.values()] == [1000, *[TIMES * 1000] * (len(known) - 1)]
    assert [one.seed for one in known["four models of one epoch"].members] == [1, 2, 3, 4]
    assert all(arm.changes["precision"] == "fp32" for arm in known.values())


@pytest.mark.bench
def test_an_ensemble_averages_the_probabilities_of_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv(VARIABLE, "/nowhere")
    corpus = prepare(tmp_path / "corpus")
    data = np.fromfile(corpus.folder / "validation.bin", "<u2")[:2000]
    data.tofile(corpus.folder / "validation.bin")
    corpus = Corpus(corpus.folder)
    arm = Arm(2, 3 * 4096, SMALL)
    assert not measured("pair", arm, corpus, tmp_path), "no member is trained"
    assert not bench.train(arm.members, corpus, tmp_path, together=1)
    trials = [Trial(corpus, one.tokens, one.seed, one.folder(tmp_path, corpus), SMALL) for one in arm.members]
    models = [exported(trial) for trial in trials]
    for trial, model in zip(trials, models, strict=True):
        nats = json.loads((trial.folder / "result.json").read_text())["nats"]
        assert ensemble_nats([model], trial) == pytest.approx(nats, rel=2e-3), "the trained model, which was validated in bf16"
    tokens, labels = (torch.from_numpy(array) for array in corpus.validation_windows())
    expected = 0.0
    with torch.no_grad():
        probabilities = sum(model(input_ids=tokens).logits.double().softmax(-1) for model in models) / 2
        for row, at in zip(*(place.tolist() for place in (labels >= 0).nonzero(as_tuple=True)), strict=True):
            expected -= math.log(probabilities[row, at, labels[row, at]])
    row = measured("pair", arm, corpus, tmp_path)
    assert float(row["bits per byte"]) == pytest.approx(corpus.bits_per_byte(expected), abs=1e-4)
    assert row["models"] == 2 and len(row["of the members"].split(", ")) == 2
    monkeypatch.setattr(epochs, "ensemble_nats", lambda *_: pytest.fail("a finished ensemble was computed again"))
    assert measured("pair", arm, corpus, tmp_path) == row
