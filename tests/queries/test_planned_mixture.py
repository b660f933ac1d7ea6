"""What a plan says of a mixture before it is built, against what mix makes and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stages import mix
from stages.core.contract.declaration import Artifact
from stages.core.contract.recipe import Recipe, load_recipe
from stages.queries import planned_mixture
from stages.queries.planned_mixture import mixture_table
from tests.conftest import run_stage
from tests.stages import made
from tests.stages.test_mix_phases import SETTINGS, inputs  # noqa: F401 - a fixture
from tests.stages.test_mix_repeats import LENGTHS, tokens_of


def recipe(tmp_path: Path, **config: Any) -> Recipe:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"name": "toy", "seed": 7, "mix": config}))
    return load_recipe(str(tmp_path / "r.yaml"), {"mix": mix.Mix})


def test_the_table_of_the_plan_is_that_of_the_mixture(inputs: dict[str, Artifact], tmp_path: Path) -> None:  # noqa: F811
    """With phases and buckets, and as one phase over the sources."""
    nodes = {"encode": inputs["tokens"], "decontaminate": inputs["documents"], "filter": inputs["filtered"]}
    for config in (SETTINGS, {"seq_len": 32, "total_tokens": 900, "weights": {"web": 2, "wiki": 1}}):
        built = run_stage(mix.STAGE, config, inputs, tmp_path / "home", seed=7)
        before = mixture_table(recipe(tmp_path, **config), {**nodes, "mix": None})
        assert before == mixture_table(recipe(tmp_path, **config), {**nodes, "mix": built}) and before
    assert before == [("source web", f"600 of {available('web', built):,} tokens, {600 / available('web', built):.2f} epochs"),
                      ("source wiki", f"300 of {available('wiki', built):,} tokens, {300 / available('wiki', built):.2f} epochs")]  # fmt: skip
    phased = mixture_table(recipe(tmp_path, **SETTINGS), {**nodes, "mix": None})
    assert phased[0][0].startswith("phase 1, source web, score") and phased[-1][0].startswith("phase 3, source wiki, score")


def available(source: str, mixture: Artifact) -> int:
    import json

    found: int = json.loads((mixture.path / "mix.json").read_text())["sources"][source]["available_tokens"]
    return found


def test_what_is_not_built_is_named(inputs: dict[str, Artifact], tmp_path: Path) -> None:  # noqa: F811
    absent = {"encode": None, "decontaminate": None, "filter": inputs["filtered"], "mix": None}
    assert mixture_table(recipe(tmp_path), absent) == [("mixture", "tokens and epochs per source are known after encode")]
    buckets = recipe(tmp_path, buckets={"by": "score", "upsampling": [1]})
    assert mixture_table(buckets, absent)[0][1].endswith("after encode and decontaminate")
    assert mixture_table(buckets, {**absent, "encode": inputs["tokens"]})[0][1].endswith("after decontaminate")
    assert mixture_table(recipe(tmp_path), {**absent, "encode": inputs["tokens"]})[0][0] == "source web"
    assert mixture_table(recipe(tmp_path), {"pretrain": None}) == [], "a plan without the node"


def test_a_mixture_that_will_be_refused_is_announced(tmp_path: Path) -> None:
    nodes = {"encode": tokens_of(tmp_path / "tokens", LENGTHS), "mix": None}
    ((what, why),) = mixture_table(recipe(tmp_path, total_tokens=10**6), nodes)
    assert (
        what == "mixture"
        and why.startswith("will be refused: The mixture takes")
        and "more than mix.max_epochs = 4. (mix.total_tokens)" in why
    )


def test_the_documents_of_a_huge_corpus_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_mixture, "MOST", 41)
    tokens = made.artifact(tokens_of(tmp_path / "tokens", LENGTHS).path, "tokens", summary={"documents": 42})
    assert mixture_table(recipe(tmp_path), {"encode": tokens, "mix": None}) == [
        ("mixture", "of 42 documents; a plan reads at most 41, so mix computes tokens and epochs per source")
    ]
