"""lm-eval's own tasks: what benchmarks reads and evaluate scores equals `lm_eval.simple_evaluate` with lm-eval's own model, item by item.

The oracle reads the same files by YAML files that include the packaged ones and replace only the data set, as a user of lm-eval would.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.evaluation.evaluate.stage import STAGE
from stages.examples.benchmarks.stage import STAGE as BENCHMARKS
from stages.examples.items.lm_eval_tasks import tasks_folder
from stages.record.contract.declaration import Artifact
from stages.record.tables.parquet import read_rows
from tests.conftest import run_stage
from tests.made import official_data
from tests.stages import made, tiny_model

MMLU = tasks_folder() / "mmlu" / "default"
SHOTS = {"arc_easy": 2, "boolq": 1, "winogrande": 1}


def subjects() -> dict[str, Path]:
    """Returns the data set's name of every task of the group mmlu, with its YAML."""
    return {yaml.safe_load(path.read_text(encoding="utf-8"))["dataset_name"]: path for path in sorted(MMLU.glob("mmlu_*.yaml"))}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    root = tmp_path_factory.mktemp("official")
    found = {task: official_data.write(root, task, scored=5) for task in official_data.MADE}
    return found | {"mmlu": official_data.write_mmlu(root, [*subjects()], scored=1, examples=2)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("official_model") / "model", max_position_embeddings=1024)


def benchmarks_of(data: dict[str, list[str]], home: Path, **settings: Any) -> Artifact:
    return run_stage(BENCHMARKS, {"lm_eval": {"tasks": [*data], "data": data, **settings}}, {}, home)


def evaluated(model: Path, benchmarks: Artifact, home: Path, **settings: Any) -> Artifact:
    inputs = {"model": made.artifact(model, "model"), "tokenizer": made.artifact(model, "tokenizer"), "benchmarks": benchmarks}
    return run_stage(STAGE, {"generated_tokens": 0, **settings}, inputs, home)


def oracle_yamls(folder: Path, data: dict[str, Sequence[str]]) -> Path:
    """Writes YAML files that include the packaged ones and read the same files."""

    def write(name: str, packaged: Path, files: Sequence[str]) -> None:
        config = {
            "include": str(packaged), "task": name, "dataset_path": "json", "dataset_name": None,
            "dataset_kwargs": {"data_files": {Path(file).stem: file for file in files}},
        }  # fmt: skip
        if not any(Path(file).stem == "validation" for file in files) and "validation" in packaged.read_text(encoding="utf-8"):
            config["validation_split"] = None
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    places = {
        "arc_easy": "arc/arc_easy.yaml", "hellaswag": "hellaswag/hellaswag.yaml", "gsm8k": "gsm8k/gsm8k.yaml", "winogrande": "winogrande/default.yaml",
        "lambada_openai": "lambada/lambada_openai.yaml", "piqa": "piqa/piqa.yaml", "boolq": "super_glue/boolq/default.yaml",
    }  # fmt: skip
    folder.mkdir()
    for name, place in places.items():
        if name in data:
            write(name, tasks_folder() / place, data[name])
    for path in MMLU.glob("_mmlu*.yaml") if "mmlu" in data else ():
        (folder / path.name).write_text(path.read_text(encoding="utf-8"))
    for subject, path in subjects().items() if "mmlu" in data else ():
        parts = []
        for file in data["mmlu"]:
            records = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
            parts.append(made.jsonl(folder / subject / Path(file).name, [one for one in records if one["subject"] == subject]))
        write(f"mmlu_{subject}", path, parts)
    return folder


def oracle(model: Path, names: Sequence[str], yamls: Path, **settings: Any) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lm = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(model).eval(), tokenizer=AutoTokenizer.from_pretrained(model), add_bos_token=True,
        batch_size=1, device="cpu",
    )  # fmt: skip
    manager = TaskManager(include_defaults=False, include_path=str(yamls))
    return simple_evaluate(model=lm, tasks=list(names), task_manager=manager, bootstrap_iters=0, **settings)


def same_items(found: Artifact, benchmarks: Artifact, expected: Any) -> int:
    """Compares every value of every item and every score; returns the number of values."""
    ids: dict[str, list[str]] = {}
    for row in read_rows(benchmarks.path / "items.parquet"):
        ids.setdefault(row["task"], []).append(row["item_id"])
    values = {(row["task"], row["metric"], row["item_id"]): row["value"] for row in read_rows(found.path / "samples.parquet")}
    scores = {(one["task"], one["metric"]): one["value"] for one in json.loads((found.path / "scores.json").read_text(encoding="utf-8"))}
    compared = 0
    for task, logged in expected["samples"].items():
        for one in logged:
            for metric in one["metrics"]:
                name = metric if one["filter"] == "none" else f"{metric},{one['filter']}"
                item = ids[task][one["doc_id"]]
                own = -values[task, "nll", item] if metric == "perplexity" else values[task, name, item]
                assert own == pytest.approx(one[metric], rel=2e-5), (task, name, one["doc_id"])
                compared += 1
    for task, results in expected["results"].items():
        for key, value in results.items():
            metric, _, chosen = key.partition(",")
            if chosen and "_stderr" not in metric:
                assert scores[task, metric if chosen == "none" else f"{metric},{chosen}"] == pytest.approx(value, rel=2e-5), (task, key)
    return compared


@pytest.mark.long
def test_eight_official_tasks_equal_simple_evaluate(data: dict[str, list[str]], model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Catches: another prompt, order, example, seed, answer, filter, metric or average than lm-eval's, by any of eight YAML files."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    given = dict(data)
    benchmarks = benchmarks_of(given, tmp_path / "home", num_fewshot=SHOTS, limit=4)
    found = evaluated(model, benchmarks, tmp_path / "home")
    yamls = oracle_yamls(tmp_path / "yamls", given)
    plain = [name for name in given if name not in SHOTS]
    compared = same_items(found, benchmarks, oracle(model, plain, yamls, limit=4))
    for name, shots in SHOTS.items():
        compared += same_items(found, benchmarks, oracle(model, [name], yamls, limit=4, num_fewshot=shots))
    assert compared == 4 * (2 + 2 + 2 + 1 + 2 + 2 + 1) + len(subjects())
