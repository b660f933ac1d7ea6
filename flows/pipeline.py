"""The road as data: every node, the stage it runs and the nodes it reads. The one list of nodes and edges.

Plan, flows, dashboard and report walk it. Imports neither prefect nor anything heavy; stage modules are imported on demand.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stages.core.contract.errors import RecipeError

if TYPE_CHECKING:
    from stages.core.contract.declaration import Stage, StageConfig


@dataclass(frozen=True)
class Node:
    """A node of the road. inputs: role in the stage -> node it reads."""

    name: str
    inputs: Mapping[str, str]

    @property
    def stage_name(self) -> str:
        return self.name.partition("@")[0]


MODELS = {"base": "pretrain", "sft": "sft", "dpo": "dpo"}  # model -> the node whose checkpoint it is


def road() -> tuple[Node, ...]:
    """All nodes in an order in which every node comes after those it reads."""
    nodes = [
        Node("benchmarks", {}),  # files given by hand come first: what is wrong with them shows before the long work
        Node("conversations", {"benchmarks": "benchmarks"}),
        Node("preferences", {"benchmarks": "benchmarks"}),
        Node("crawl", {}),
        Node("extract", {"warc": "crawl"}),
        Node("train_quality", {"documents": "extract"}),
        Node("filter", {"documents": "extract", "classifier": "train_quality"}),
        Node("dedup", {"documents": "filter"}),
        Node("decontaminate", {"documents": "dedup", "benchmarks": "benchmarks"}),
        Node("train_tokenizer", {"documents": "decontaminate"}),
        Node("encode", {"documents": "decontaminate", "tokenizer": "train_tokenizer"}),
        Node("mix", {"tokens": "encode"}),
        Node("pretrain", {"mixture": "mix", "tokens": "encode", "tokenizer": "train_tokenizer"}),
        Node("sft", {"checkpoint": "pretrain", "conversations": "conversations", "tokenizer": "train_tokenizer"}),
        Node("reference", {"checkpoint": "sft", "preferences": "preferences", "tokenizer": "train_tokenizer"}),
        Node("dpo", {"checkpoint": "sft", "logprobs": "reference", "preferences": "preferences", "tokenizer": "train_tokenizer"}),
    ]
    for model, trained in MODELS.items():
        nodes.append(Node(f"export@{model}", {"checkpoint": trained, "tokenizer": "train_tokenizer"}))
    for model in MODELS:
        reads = {
            "model": f"export@{model}",
            "benchmarks": "benchmarks",
            "mixture": "mix",
            "tokens": "encode",
            "tokenizer": "train_tokenizer",
        }
        nodes.append(Node(f"evaluate@{model}", reads))
    data = {
        "documents": "decontaminate",
        "mixture": "mix",
        "benchmarks": "benchmarks",
        "conversations": "conversations",
        "preferences": "preferences",
    }
    nodes.append(Node("contamination", data | {model: f"evaluate@{model}" for model in MODELS}))
    nodes.append(Node("report", {node.name: node.name for node in nodes}))
    return tuple(nodes)


def stage_of(node: Node) -> Stage:
    """The stage a node runs; imports its module."""
    stage: Stage = importlib.import_module(f"stages.{node.stage_name}").STAGE
    return stage


def config_classes() -> dict[str, type[StageConfig]]:
    """node -> config class, for reading recipes."""
    return {node.name: stage_of(node).config for node in road()}


def upstream(names: Sequence[str], adopted: Collection[str] = ()) -> tuple[Node, ...]:
    """The named nodes and all they need, in road order. Raises RecipeError for an unknown node.

    An adopted node needs nothing. What a stage can do without (`Stage.optional`) is taken along only where something else needs it.
    """
    by_name = {node.name: node for node in road()}
    needed: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in by_name:
            raise RecipeError(f"There is no node {name!r}.", do=f"The nodes are: {', '.join(by_name)}.")
        if name not in needed:
            needed.add(name)
            if name not in adopted:
                optional = stage_of(by_name[name]).optional
                queue.extend(read for role, read in by_name[name].inputs.items() if role not in optional)
    kept = (node for node in road() if node.name in needed)
    return tuple(
        replace(n, inputs={role: read for role, read in n.inputs.items() if read in needed and n.name not in adopted}) for n in kept
    )


def downstream(name: str) -> tuple[Node, ...]:
    """The named node and all that is made from it, in road order. Raises RecipeError for an unknown node."""
    upstream([name])
    reached = {name}
    for node in road():
        if reached & set(node.inputs.values()):
            reached.add(node.name)
    return tuple(node for node in road() if node.name in reached)


def spared(adopted: Collection[str]) -> set[str]:
    """The nodes that do not run when these are adopted: they, and what only they need. Raises RecipeError where one stands for nothing."""
    left = {node.name for node in upstream(["report"], adopted)}
    useless = [name for name in adopted if name not in left]
    if useless:
        raise RecipeError(
            f"{useless[0]} is adopted, but nothing reads it: what follows it is adopted too.", do=f"Take adopt.{useless[0]} away."
        )
    return {node.name for node in road() if node.name not in left or node.name in adopted}
