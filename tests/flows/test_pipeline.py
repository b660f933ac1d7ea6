"""The road as data: a DAG whose roles and kinds fit the stages."""

from __future__ import annotations

import pytest

from flows.pipeline import MODELS, config_classes, downstream, road, stage_of, upstream
from stages.core.contract.declaration import KINDS
from stages.core.contract.errors import RecipeError


def test_every_node_comes_after_those_it_reads() -> None:
    seen: set[str] = set()
    for node in road():
        assert set(node.inputs.values()) <= seen, node
        seen.add(node.name)
    assert len(seen) == len(road()) == 24


@pytest.mark.parametrize("node", road(), ids=lambda n: n.name)
def test_roles_and_kinds_fit_the_stage(node) -> None:
    stage = stage_of(node)
    kinds = {n.name: stage_of(n).output for n in road()}
    assert stage.name == node.stage_name and stage.output in KINDS
    assert {role: kinds[read] for role, read in node.inputs.items()} == dict(stage.inputs)
    assert stage.version == len(stage.versions) >= 1


def test_every_model_is_exported_and_evaluated() -> None:
    names = {node.name for node in road()}
    for model, trained in MODELS.items():
        assert {f"export@{model}", f"evaluate@{model}", trained} <= names


def test_upstream_of_a_node_is_what_it_needs() -> None:
    assert [n.name for n in upstream(["dedup"])] == ["crawl", "extract", "train_quality", "filter", "dedup"]
    assert {n.name for n in upstream(["report"])} == {n.name for n in road()} == set(config_classes())
    with pytest.raises(RecipeError, match="There is no node 'dedpu'") as caught:
        upstream(["dedpu"])
    assert "decontaminate" in str(caught.value)


def test_downstream_is_what_upstream_says_from_the_other_end() -> None:
    for node in road():
        made = {n.name for n in downstream(node.name)}
        assert made == {n.name for n in road() if node.name in {u.name for u in upstream([n.name])}}
    with pytest.raises(RecipeError, match="There is no node 'dedpu'"):
        downstream("dedpu")
