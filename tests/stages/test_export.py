"""export: what transformers loads is the trained model, and nothing else is published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages import export
from stages.ask.weights import compare_weights
from stages.core.errors import StageError, VerificationError
from stages.core.manifest import read_artifact
from stages.lm import checkpoint, convert
from stages.lm.arch import read_model_config
from stages.lm.model import build
from tests.conftest import run_stage
from tests.stages.conftest import Chain


@pytest.fixture(scope="session")
def exported(chain: Chain) -> Path:
    return run_stage(export.STAGE, {}, {"checkpoint": chain.aligned, "tokenizer": chain.tokenizer}, chain.home, node="export@dpo").path


def test_export_loads_offline_with_the_same_logits(chain: Chain, exported: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(exported, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(exported, local_files_only=True)
    ours = build(read_model_config(chain.aligned.path / "model.json"), checkpoint.consolidate(chain.aligned.path / "checkpoint"))
    ids = torch.tensor([tokenizer("<|begin_of_text|>The red fox sees the", add_special_tokens=False).input_ids])
    with torch.no_grad():
        mine = ours(ids, torch.arange(ids.shape[1])[None], torch.zeros_like(ids))
        assert torch.allclose(mine, theirs(ids).logits, atol=1e-5)
    assert type(theirs).__name__ == "LlamaForCausalLM"


def test_the_weights_of_checkpoint_and_model_are_compared(chain: Chain, exported: Path) -> None:
    model = read_artifact(exported)
    same = compare_weights(chain.aligned, model)
    assert same["config"] == same["alone"] == [] and {row["relative_change"] for row in same["parameters"]} == {0.0}
    stages = [compare_weights(chain.pretrained, later)["groups"][-1]["relative_change"] for later in (chain.tuned, chain.aligned)]
    assert all(0 < change < 10 for change in stages) and compare_weights(model, chain.tuned)["groups"][-1]["relative_change"] > 0


def test_export_stops_at_both_ends(chain: Chain, exported: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(exported, local_files_only=True)
    stops = [tokenizer.convert_tokens_to_ids(token) for token in ("<|end_of_text|>", "<|eot_id|>")]
    assert GenerationConfig.from_pretrained(exported).eos_token_id == stops
    assert tokenizer.chat_template


def test_export_is_deterministic(chain: Chain, exported: Path) -> None:
    again = run_stage(
        export.STAGE, {}, {"checkpoint": chain.aligned, "tokenizer": chain.tokenizer}, chain.home, node="export@dpo", force=True
    )
    assert again.path == exported


def test_export_refuses_a_model_that_is_not_the_trained_one(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(convert.RENAMES, "attention.query", "self_attn.o_proj")  # of the same shape, so only the logits tell
    monkeypatch.setitem(convert.RENAMES, "attention.out", "self_attn.q_proj")
    with pytest.raises(VerificationError, match="The exported model is not the trained one: logits differ by"):
        run_stage(export.STAGE, {}, {"checkpoint": chain.aligned, "tokenizer": chain.tokenizer}, tmp_path)
    assert not list(tmp_path.glob("artifacts/*/*"))


def test_export_refuses_a_damaged_checkpoint(chain: Chain, tmp_path: Path) -> None:
    import shutil

    from tests.stages.made import artifact

    shutil.copytree(chain.aligned.path, tmp_path / "copy")
    shard = next((tmp_path / "copy" / "checkpoint" / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    data[-8:] = b"\xff" * 8
    shard.write_bytes(data)
    with pytest.raises(VerificationError, match="does not have the sha256 that was recorded"):
        run_stage(
            export.STAGE, {}, {"checkpoint": artifact(tmp_path / "copy", "checkpoint"), "tokenizer": chain.tokenizer}, tmp_path / "home"
        )


def test_export_refuses_another_tokenizer(chain: Chain, tmp_path: Path) -> None:
    from stages import train_tokenizer
    from tests.stages.conftest import sentences
    from tests.stages.made import documents

    made = documents(tmp_path / "documents", [sentences(150, 5)])
    other = run_stage(train_tokenizer.STAGE, {"vocab_size": 290}, {"documents": made}, tmp_path / "home")
    with pytest.raises(StageError, match="The tokenizer has 290 entries, but the model was trained with 300"):
        run_stage(export.STAGE, {}, {"checkpoint": chain.aligned, "tokenizer": other}, tmp_path / "home")
