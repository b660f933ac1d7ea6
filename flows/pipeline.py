"""Derives the DAG from the declarations of the stages in the folder stages/: its nodes, the stage of each node, and its inputs.

The plan, the flows, the dashboard and the report use this DAG. The module imports neither prefect nor anything heavy.
Guarantee: the nodes and their order follow from the declarations alone. Every node comes after its inputs. The order is depth first,
ties are broken by name, and nodes that run once per model come after all other nodes that are ready. A stage that reads an unknown node
or its own result is refused.
Cost: the first call imports the stage modules, which takes about as long as reading a recipe. Later calls use the cached DAG.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import stages
from stages.core.contract.errors import RecipeError, StageError

if TYPE_CHECKING:
    from stages.core.contract.declaration import Stage
    from stages.settings import StageConfig


@dataclass(frozen=True)
class Node:
    """A node of the DAG. inputs: role in the stage -> node that it reads."""

    name: str
    inputs: Mapping[str, str]

    @property
    def stage_name(self) -> str:
        """The name of the stage: the node's name without "@model"."""
        return self.name.partition("@")[0]


@dataclass(frozen=True)
class Dag:
    """A derived DAG.

    Attributes:
        nodes: all nodes, in pipeline order.
        stages: node -> its stage, with the roles, optional roles and report sections that it has in this DAG.
        models: model -> the node that trains it.
    """

    nodes: tuple[Node, ...]
    stages: Mapping[str, Stage]
    models: Mapping[str, str]


def pipeline() -> tuple[Node, ...]:
    """Returns all nodes, in pipeline order: every node comes after its inputs."""
    return _dag().nodes


def stage_of(node: Node) -> Stage:
    """Returns the stage of a node, with the roles that the node has in the DAG."""
    return _dag().stages[node.name]


def models() -> Mapping[str, str]:
    """Returns model -> the node that trains it, in pipeline order."""
    return _dag().models


@cache
def _dag() -> Dag:
    return derived({stage.name: stage for stage in discovered()})


def discovered() -> Iterator[Stage]:
    """Yields the stages that modules of the folder stages/ declare, sorted by name. Modules without `STAGE` are skipped.

    Raises:
        StageError: the name of a stage differs from the name of its module.
    """
    for module in sorted(found.name for found in pkgutil.iter_modules(stages.__path__) if not found.ispkg):
        stage: Stage | None = getattr(importlib.import_module(f"stages.{module}"), "STAGE", None)
        if stage is not None and stage.name != module:
            raise StageError(
                f"The stage in {module}.py calls itself {stage.name!r}.",
                where=f"stages/{module}.py",
                do="Give file and stage one name.",
            )
        if stage is not None:
            yield stage


def derived(declared: Mapping[str, Stage]) -> Dag:
    """Returns the DAG of the given stages (name -> stage). An unknown input or a cycle is a StageError."""
    trained = {stage.model: name for name, stage in sorted(declared.items()) if stage.model}
    nodes = _ordered(_expanded(declared, trained, ()), declared)
    place = {node.name: number for number, node in enumerate(nodes)}
    trained = dict(sorted(trained.items(), key=lambda model: place[model[1]]))  # placeholders are expanded in pipeline order
    nodes = _ordered(_expanded(declared, trained, [node.name for node in nodes]), declared)
    return Dag(nodes, {node.name: _resolved(node, declared, nodes) for node in nodes}, trained)


def _expanded(declared: Mapping[str, Stage], trained: Mapping[str, str], order: Sequence[str]) -> dict[str, Node]:
    """Expands the placeholders in the inputs of the stages.

    Args:
        declared: name -> stage.
        trained: model -> the node that trains it.
        order: all nodes, for the order of roles; empty if it is not known yet.

    Returns:
        name -> node.

    Raises:
        StageError: a stage reads an unknown node.
    """
    instances = {
        (f"{name}@{model}" if stage.per_model else name): (stage, model)
        for name, stage in declared.items()
        for model in (trained if stage.per_model else [""])
    }
    nodes = {}
    for node, (stage, own) in instances.items():
        inputs: dict[str, str] = {}
        for role, read in stage.inputs.items():
            if "{node}" in role:
                inputs |= {other: other for other in order or sorted(instances) if other != node and other not in inputs}
            else:
                for model in [own] if own else trained if "{model}" in role + read else [""]:
                    names = {"{model}": model, "{checkpoint}": trained.get(model, "")}
                    inputs[_filled(role, names)] = _filled(read, names)
        if reads_every_node(stage) and order:
            inputs = {role: inputs[role] for role in sorted(inputs, key=lambda role: order.index(inputs[role]))}
        nodes[node] = Node(node, inputs)
    for made in nodes.values():
        if unknown := sorted(set(made.inputs.values()) - set(nodes)):
            raise StageError(
                f"{made.name} reads {unknown[0]!r}, which is not a node.",
                where=f"stages/{made.stage_name}.py: STAGE.inputs",
                do=f"The nodes are: {', '.join(nodes)}.",
            )
    return nodes


def _filled(text: str, names: Mapping[str, str]) -> str:
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text


def reads_every_node(stage: Stage) -> bool:
    """Returns whether the stage reads every other node (its inputs have the role "{node}")."""
    return any("{node}" in role for role in stage.inputs)


def _ordered(nodes: Mapping[str, Node], declared: Mapping[str, Stage]) -> tuple[Node, ...]:
    """Sorts nodes into pipeline order.

    The next node is the one that became ready last, so that one branch is completed before another starts. Nodes that run once per model
    come after all other ready nodes, in the order in which they became ready.

    Args:
        nodes: name -> node.
        declared: name -> stage.

    Returns:
        The nodes, each after its inputs.

    Raises:
        StageError: some nodes form a cycle.
    """
    order: list[Node] = []
    ready: dict[str, int] = {}  # node -> number of ordered nodes when it became ready
    while len(order) < len(nodes):
        placed = {node.name for node in order}
        ready |= {n.name: len(order) for n in nodes.values() if n.name not in ready and placed.issuperset(n.inputs.values())}
        waiting = [(late, ready[name] if late else -ready[name], name) for name in ready if name not in placed
                   for late in [declared[nodes[name].stage_name].per_model]]  # fmt: skip
        if not waiting:
            circle = ", ".join(name for name in nodes if name not in placed)
            raise StageError(f"Some nodes wait for each other: {circle}.", where="STAGE.inputs", do="Remove one of these inputs.")
        order.append(nodes[min(waiting)[2]])
    return tuple(order)


def _resolved(node: Node, declared: Mapping[str, Stage], nodes: Sequence[Node]) -> Stage:
    """Returns the stage of a node with the roles of that node.

    For a stage that reads every node, an input is optional if another node reads it and the stage's declaration does not name it.
    """
    stage = declared[node.stage_name]
    if not reads_every_node(stage):
        return replace(stage, inputs=node.inputs)
    needed = {read for other in nodes if not reads_every_node(declared[other.stage_name]) for read in other.inputs.values()}
    named = {role for role in node.inputs if any(_matches(own, role) for own in stage.inputs)}
    sections = {role: section for role, read in node.inputs.items() if (section := declared[read.partition("@")[0]].section) is not None}
    optional = tuple(role for role, read in node.inputs.items() if read in needed and role not in named)
    return replace(stage, inputs=node.inputs, optional=(*stage.optional, *optional), sections=sections)


def _matches(declared: str, role: str) -> bool:
    """Returns whether a role comes from a declared role: it is equal, or it has a model in place of "{model}"."""
    before, placeholder, after = declared.partition("{model}")
    return role == declared or bool(placeholder) and role.startswith(before) and role.endswith(after)


def config_classes() -> dict[str, type[StageConfig]]:
    """Returns node -> config class of its stage, for reading recipes."""
    return {node.name: stage_of(node).config for node in pipeline()}


def upstream(names: Sequence[str], imported: Collection[str] = ()) -> tuple[Node, ...]:
    """Finds all nodes that the named nodes need.

    An imported node needs no other node. An optional input (`Stage.optional`) is included only if another node needs it.

    Args:
        names: the named nodes.
        imported: the imported nodes.

    Returns:
        The named and the needed nodes, in pipeline order.

    Raises:
        RecipeError: a node is unknown.
    """
    by_name = {node.name: node for node in pipeline()}
    needed: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in by_name:
            raise RecipeError(f"There is no node {name!r}.", do=f"The nodes are: {', '.join(by_name)}.")
        if name not in needed:
            needed.add(name)
            if name not in imported:
                optional = stage_of(by_name[name]).optional
                queue.extend(read for role, read in by_name[name].inputs.items() if role not in optional)
    kept = (node for node in pipeline() if node.name in needed)
    return tuple(
        replace(n, inputs={role: read for role, read in n.inputs.items() if read in needed and n.name not in imported}) for n in kept
    )


def downstream(name: str) -> tuple[Node, ...]:
    """Returns the named node and all nodes that follow from it, in pipeline order. Raises RecipeError for an unknown node."""
    upstream([name])
    reached = {name}
    for node in pipeline():
        if reached & set(node.inputs.values()):
            reached.add(node.name)
    return tuple(node for node in pipeline() if node.name in reached)


def spared(imported: Collection[str]) -> set[str]:
    """Finds the nodes that do not run if the given nodes are imported. An unknown node is a RecipeError.

    Args:
        imported: the imported nodes.

    Returns:
        These nodes, and the nodes that only they need.

    Raises:
        RecipeError: no running node reads an imported node.
    """
    left = {node.name for node in upstream(["report"], imported)}
    useless = [name for name in imported if name not in left]
    if useless:
        raise RecipeError(
            f"{useless[0]} is imported, but nothing reads it: what follows it is imported too.", do=f"Remove import.{useless[0]}."
        )
    return {node.name for node in pipeline() if node.name not in left or node.name in imported}
