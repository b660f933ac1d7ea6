"""export: transformers loads the trained model; any other model is not published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.evaluation import export
from stages.questions.weights import compare_weights
from stages.record.contract.declaration import Artifact, Stage
from stages.record.contract.errors import RecipeError, StageError, VerificationError
from stages.record.run.import_artifact import import_artifact
from stages.record.store.external import sha256_file
from stages.record.store.manifest import read_artifact
from stages.training import dpo, pretrain, sft
from stages.training.checkpoints import checkpoint, convert
from stages.training.model.config import read_model_config
from stages.training.model.llama import build, whole_sequences
from tests.conftest import run_stage
from tests.made import milestones
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
        mine = ours(ids, *whole_sequences(ids))
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
    monkeypatch.setitem(convert.RENAMES, "attention.query", "self_attn.o_proj")  # both have the same shape, so only the logits differ
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
    from stages.tokens.train_tokenizer import stage as train_tokenizer
    from tests.stages.conftest import sentences
    from tests.stages.made import documents

    made = documents(tmp_path / "documents", [sentences(150, 5)])
    other = run_stage(train_tokenizer.STAGE, {"vocab_size": 290}, {"documents": made}, tmp_path / "home")
    with pytest.raises(
        RecipeError, match=r"dpo/\w+ was made from train_tokenizer/\w+, but export would read another train_tokenizer beside it"
    ):
        run_stage(export.STAGE, {}, {"checkpoint": chain.aligned, "tokenizer": other}, tmp_path / "home")


def test_an_exported_model_imported_and_exported_again_is_the_same_bit_for_bit(chain: Chain, exported: Path, tmp_path: Path) -> None:
    imported = import_artifact(
        tmp_path / "home", "pretrain", pretrain.STAGE, [str(exported)], "exported above", lambda event: None
    ).artifact
    assert imported.summary["tokenizer_sha256"] == sha256_file(chain.tokenizer.path / "tokenizer.json")
    assert imported.manifest["kind"] == "checkpoint" and imported.summary["steps"] == imported.summary["tokens"] == 0
    again = run_stage(export.STAGE, {}, {"checkpoint": imported, "tokenizer": chain.tokenizer}, tmp_path / "home", node="export@base")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (again.path / name).read_bytes() == (exported / name).read_bytes(), name


@pytest.mark.long
def test_an_imported_model_is_trained_on(chain: Chain, exported: Path, tmp_path: Path) -> None:
    """The sft starts from its weights, and the first evaluation equals that of the original model."""
    from tests.stages.conftest import RUNTIME, SFT

    imported = import_artifact(
        tmp_path / "home", "pretrain", pretrain.STAGE, [str(exported)], "exported above", lambda event: None
    ).artifact
    inputs = {"conversations": chain.conversations, "tokenizer": chain.tokenizer}
    from_imported = run_stage(sft.STAGE, SFT, inputs | {"checkpoint": imported}, tmp_path / "home", runtime=RUNTIME)
    from_trained = run_stage(sft.STAGE, SFT, inputs | {"checkpoint": chain.aligned}, tmp_path / "home", runtime=RUNTIME)
    figures = [{name: value for name, value in one.summary.items() if name != "receipt"} for one in (from_imported, from_trained)]
    assert figures[0] == figures[1], "the receipt names the checkpoint that was trained on"


def test_folders_that_are_no_model_are_refused(chain: Chain, exported: Path, tmp_path: Path) -> None:
    def refused(node: str, stage: Stage, *paths: Path) -> str:
        with pytest.raises(RecipeError) as caught:
            import_artifact(tmp_path / "home", node, stage, [str(p) for p in paths], "x", lambda event: None)
        assert not list((tmp_path / "home").glob("artifacts/*/*")) and not list((tmp_path / "home").glob("scratch/*"))
        return str(caught.value)

    assert "A model is config.json and safetensors files of one folder" in refused("sft", sft.STAGE, exported / "config.json")
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    weights = exported / "model.safetensors"
    assert "The architecture is GPT2LMHeadModel" in refused("dpo", dpo.STAGE, tmp_path / "config.json", weights)
    assert "of one folder" in refused("dpo", dpo.STAGE, tmp_path / "config.json", exported)


def test_the_tokenizer_of_another_vocabulary_is_refused_for_an_imported_model(chain: Chain, tmp_path: Path) -> None:
    from tests.stages import tiny_model

    theirs = tiny_model.write(tmp_path / "model", vocab_size=290)
    imported = import_artifact(tmp_path / "home", "pretrain", pretrain.STAGE, [str(theirs)], "made up", lambda event: None).artifact
    with pytest.raises(StageError, match="The tokenizer has 300 entries, but the model was trained with 290"):
        run_stage(export.STAGE, {}, {"checkpoint": imported, "tokenizer": chain.tokenizer}, tmp_path / "home")


def test_a_milestone_is_exported_in_place_of_the_last_step(chain: Chain, tmp_path: Path) -> None:
    """The oracle is transformers on the export against our model with the weights that the test made for the step."""
    from transformers import AutoModelForCausalLM

    vocabulary = int(read_model_config(chain.pretrained.path / "model.json").vocab_size)
    trained = milestones.trained(tmp_path / "pretrain", vocabulary)
    inputs = {"checkpoint": trained, "tokenizer": chain.tokenizer}

    def exported(**settings: int) -> Artifact:
        return run_stage(export.STAGE, settings, inputs, tmp_path / "home", node="export@base")

    found = {step: exported(step=step) for step in (4, 8, 12)}
    shape, ids = read_model_config(trained.path / "model.json"), torch.arange(40)[None]
    for step, artifact in found.items():
        ours = build(shape, milestones.weights(shape, step))
        with torch.no_grad():
            theirs = AutoModelForCausalLM.from_pretrained(artifact.path, local_files_only=True)(ids).logits
            assert torch.allclose(ours(ids, *whole_sequences(ids)), theirs, atol=1e-4), step
        assert artifact.summary["step"] == step
        (table,) = (export.report_section(artifact)).tables
        assert table.rows[0]["step"] == str(step)
    assert len({artifact.manifest["key"] for artifact in found.values()}) == 3
    last = exported()
    assert last.summary["step"] == 12 and last.manifest["digest"] == found[12].manifest["digest"] != found[8].manifest["digest"]


def test_a_step_that_was_not_kept_is_refused(chain: Chain, tmp_path: Path) -> None:
    trained = milestones.trained(tmp_path / "pretrain", 300)
    with pytest.raises(RecipeError, match=r"pretrain-1 has no checkpoint of step 7, but of the steps 4, 8, 12\.") as caught:
        run_stage(export.STAGE, {"step": 7}, {"checkpoint": trained, "tokenizer": chain.tokenizer}, tmp_path / "home", node="export@base")
    assert caught.value.where == "export@base.step" and caught.value.do.startswith("Name one of them. pretrain.milestone_every_steps")
