"""The quality benchmark: its windows, its counts of FLOPs, and one short training through its process."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from stages.training.data.phases import sequences_before
from stages.training.data.reader import IGNORE, SequenceReader
from tests.bench.quality import __main__ as bench
from tests.bench.quality.contestants import (
    CONTESTANTS,
    CONTEXT,
    MODEL,
    Trial,
    begin_scaled,
    job_of,
    kneser_ney,
    muon_flops,
    nanochat_momentum,
    nanochat_rate,
)
from tests.bench.quality.wikitext import Corpus, prepare
from tests.made.real import VARIABLE


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "/nowhere")
        return prepare(tmp_path_factory.mktemp("quality") / "corpus")


def test_each_validation_token_is_predicted_once_by_loam_and_by_the_others(corpus: Corpus) -> None:
    _, labels = corpus.validation_windows()
    assert labels[labels != IGNORE].tolist() == corpus.validation[1:].tolist()
    reader = SequenceReader(corpus.sequences("validation", 1))
    read = reader.batch(np.arange(len(reader))).labels
    assert read[read != IGNORE].tolist() == corpus.validation[1:].tolist()


def test_training_windows_hold_each_token_once(corpus: Corpus) -> None:
    reader = SequenceReader(corpus.sequences("train", 0))
    batch = reader.batch(np.arange(len(reader)))
    assert batch.tokens[batch.docs >= 0].tolist() == corpus.train.tolist()


def test_bits_per_byte_of_a_uniform_model(corpus: Corpus) -> None:
    bits = 12 * (len(corpus.validation) - 1)  # 4,096 entries
    assert corpus.bits_per_byte(bits * math.log(2)) == pytest.approx(bits / int(corpus.described["validation_bytes"]))


def test_flops_of_muon_are_those_of_its_products() -> None:
    products, square = 0, 256
    for rows, columns in [(256, 256)] * 4 + [(256, 688)] * 3:
        for _ in range(5):
            products += 2 * rows * rows * columns + 2 * rows * rows * rows + 2 * rows * rows * columns  # X Xᵀ, its square, times X
    assert square == MODEL.hidden_size and muon_flops(MODEL, 5) == 4 * products


def test_schedules_of_nanochat() -> None:
    assert [nanochat_rate(step, 1000) for step in (0, 39, 350)] == [1 / 40, 1.0, 1.0]
    assert nanochat_rate(999, 1000) == pytest.approx(0.05, abs=2e-3)
    assert [round(nanochat_momentum(step, 1000), 4) for step in (0, 400, 1000)] == [0.85, 0.9646, 0.9]


def test_scaled_initial_weights_of_a_llama() -> None:
    import torch
    from transformers import LlamaForCausalLM

    from tests.bench.train.sides import llama_config

    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config())
    begin_scaled(model)
    found = {name: float(param.detach().std()) for name, param in model.named_parameters() if param.ndim == 2}
    assert found["model.embed_tokens.weight"] == pytest.approx(1 / 16, rel=0.02) == found["lm_head.weight"]
    assert found["model.layers.3.self_attn.q_proj.weight"] == pytest.approx(1 / 16, rel=0.02)
    assert found["model.layers.3.self_attn.o_proj.weight"] == pytest.approx(1 / 16 / 8**0.5, rel=0.02)
    assert found["model.layers.0.mlp.down_proj.weight"] == pytest.approx(688**-0.5 / 8**0.5, rel=0.02)


def test_a_change_reaches_settings_and_shape(corpus: Corpus, tmp_path: Path) -> None:
    changes = {"optimizer.momentum": 0.9, "model.hidden_size": 128, "global_batch_size": 8, "warmup_steps": 1}
    job = job_of(Trial(corpus, 16 * CONTEXT, 1, tmp_path, changes), {"optimizer": {"name": "muon"}, "learning_rate": 0.02})
    assert (job.training.optimizer.momentum, job.model.hidden_size, job.model.head_dim, job.steps) == (0.9, 128, 32, 2)  # type: ignore[attr-defined]
    job = job_of(Trial(corpus, 16 * CONTEXT, 1, tmp_path, {"embedding_std": 0.5, "warmup_steps": 0}), CONTESTANTS["loam, Muon"].settings)
    assert job.model.qk_norm and job.embedding_std == 0.5 and job.model.hidden_size == 288 and job.model.head_dim == 32


def test_a_batch_ramp_reads_as_many_tokens(corpus: Corpus, tmp_path: Path) -> None:
    changes = {"batch_ramp": [{"steps": 4, "global_batch_size": 8}], "warmup_steps": 1}
    job = job_of(Trial(corpus, 64 * CONTEXT + 7, 1, tmp_path, changes), CONTESTANTS["loam, Muon"].settings)
    assert (job.steps, job.machine.micro_batch_size, sequences_before(job.phases, job.steps)) == (6, 8, 64)


def test_a_trigram_beats_a_uniform_model(corpus: Corpus, tmp_path: Path) -> None:
    trained = kneser_ney(3)(Trial(corpus, 50_000, 1, tmp_path, {}))
    assert corpus.bits_per_byte(trained.nats) < 12 * (len(corpus.validation) - 1) / int(corpus.described["validation_bytes"])


@pytest.mark.bench
def test_a_training_runs_once_and_gives_a_row(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        bench.Wanted(
            "loam, Muon",
            3 * 4096,
            1,
            json.dumps({"warmup_steps": 1, "model.num_hidden_layers": 1, "model.conv_layers": [], "model.hidden_size": 64}),
        )
    ]
    assert not bench.train(wanted, corpus, tmp_path, together=1)
    (row,) = bench.table(wanted, corpus, tmp_path)
    assert 0 < float(row["bits per byte (mean, spread over seeds)"]) < 12
    monkeypatch.setattr(bench, "started", lambda *_: pytest.fail("a finished training was started again"))
    assert not bench.train(wanted, corpus, tmp_path, together=1)
