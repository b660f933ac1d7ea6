"""Runs a recipe several times with other seeds on the same data, and finds what each run made.

The nodes before mix are built once, with the recipe's seed, and imported by every further run. So the seed of a run decides which
documents are held out, in which order the sequences are read and the initial weights, and not which documents there are.
Guarantee: what is cached is not built again, and a run of which every node is cached makes no record.
Cost: one run per seed from mix on. Prefect is not started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flows.execute import run_nodes
from flows.opened_recipe import Session, refuse_damaged, refuse_missing
from flows.pipeline import downstream
from flows.progress import WATCHER, end_values
from stages.core.contract.declaration import Artifact
from stages.core.run.runner import Event, Report, Result
from stages.core.store import manifest
from stages.queries.plan import Plan, Step, make_plan

SEEDED_FROM = "mix"
"""The first node that a seed of a run decides."""


def data_steps(session: Session, until: str) -> list[Step]:
    """Returns the nodes that `until` needs and that the seed of a run does not decide, in pipeline order."""
    seeded = {node.name for node in downstream(SEEDED_FROM)} - set(session.imported)
    return [step for step in session.steps(until) if step.node not in seeded]


def with_seed(session: Session, until: str, data: Mapping[str, Artifact], seed: int) -> Session:
    """Returns the session of a run with another seed.

    Args:
        session: The recipe.
        until: The last node of the run.
        data: Node -> artifact, for `data_steps`. Those that a seeded node reads are imported.
        seed: The seed of the run.
    """
    read = {node for step in session.steps(until) if step.node not in data for node in step.reads.values()}
    imported = {node: artifact for node, artifact in data.items() if node in read}
    imports = {node: session.recipe.imports.get(node, manifest.artifact_id(artifact)) for node, artifact in imported.items()}
    return replace(session, recipe=replace(session.recipe, seed=seed, imports=imports), imported=imported)


def built(session: Session, steps: Sequence[Step], label: str) -> dict[str, Artifact]:
    """Builds what is missing of some nodes.

    Args:
        session: The recipe and the home.
        steps: The nodes, with every node that they read.
        label: What the run is for, for its record.

    Returns:
        Node -> artifact. What a plan or a run refuses is an error.
    """
    plan = _planned(session, steps)
    refuse_missing(session, plan)
    refuse_damaged(session, plan)
    if not plan.complete:
        command = {
            "flow": "pretrain",
            "recipe": session.recipe.source,
            "until": steps[-1].node,
            "start": "",
            "set": "",
            "force": "",
            "for": label,
        }
        run_nodes(session, steps, _perform, command)
        plan = _planned(session, steps)
    return {step.node: step.artifact for step in plan.steps if step.artifact is not None}


def _planned(session: Session, steps: Sequence[Step]) -> Plan:
    return make_plan(session.home, session.recipe, steps, session.imported, session.off)


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process so far, and of its child processes that ended."""
    return sum(os.times()[:4])


def _perform(node: str, work: Callable[[Report], Result]) -> Result:
    """Returns the result of one node. Shows its start and its end."""
    report = WATCHER.get()
    report(Event("start", node, {}))
    result = work(report)
    report(Event("end", node, end_values(result)))
    return result
