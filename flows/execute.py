"""Runs the nodes of a pipeline in order, each through the function `perform`, and records the run. Does not import Prefect.

Guarantee: the run's record names how the run ended, also after an error or an interruption, and the index contains what was published.
If a full disk prevents this, the run counts as killed, and the next update of the index adds what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flows.opened_recipe import Session, refuse_unbuilt
from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import LoamError, StageError
from stages.core.contract.secrets import redact, redacted
from stages.core.contract.states import NodeState, RunState
from stages.core.index import database
from stages.core.run import openlineage
from stages.core.run.node_job import NodeJob, prepare
from stages.core.run.runner import Report, Result, run_node
from stages.core.store import manifest, names, runs
from stages.queries.plan import Step

Perform = Callable[[str, Callable[[Report], Result]], Result]


def run_nodes(
    session: Session,
    steps: Sequence[Step],
    perform: Perform,
    command: Mapping[str, str | bool],
    force: Collection[str] = (),
    ready: Mapping[str, Artifact] | None = None,
    name: str = "",
) -> str:
    """Runs the steps in order.

    Args:
        session: the recipe and the home.
        steps: the nodes to run, each after those that it reads.
        perform: called with a node's name and its work; returns the result of the work.
        command: the command and its options, for the record of the run.
        force: nodes to build again although they are cached.
        ready: artifacts of nodes that are read but are not among the steps.
        name: a name for the run; empty for none but its numbered alias. A name that is in use is a RecipeError.

    Returns:
        The run id.
    """
    with runs.holding(session.home, session.recipe, command) as run_id:
        artifacts = dict(ready or {})
        tell = openlineage.announcer(session.home, session.recipe.runtime.openlineage, run_id)
        tell.run("start")
        try:
            if name:
                names.give_name(session.home, name, run_id)
            for step in steps:
                artifacts[step.node] = _one(session, step, artifacts, perform, run_id, step.node in force, tell)
        except BaseException as error:
            with suppress(OSError, LoamError):  # on a full disk, show the first error; the index is completed later
                runs.end_run(session.home, run_id, RunState(_state_of(error)))
                database.update(session.home)
            tell.run(_state_of(error), _first_line(error))
            raise
        runs.end_run(session.home, run_id, RunState.DONE)
        database.update(session.home)
        tell.run(RunState.DONE)
        return run_id


def run_one(session: Session, node: str, perform: Perform, command: Mapping[str, str | bool], force: bool) -> str:
    """Runs one node on existing artifacts. A node that is imported or off is a RecipeError, because it is not built.

    Args:
        session: the recipe and the home.
        node: the node.
        perform: called with the node's name and its work; returns the result of the work.
        command: the command and its options, for the record of the run.
        force: whether to build the node again although it is cached.

    Returns:
        The run id.

    Raises:
        StageError: an input of the node is not built.
    """
    refuse_unbuilt(session, [node])
    steps = session.steps(node)
    target = steps[-1]
    ready = {p.node: p.artifact for p in session.plan(node).steps if p.artifact is not None}
    missing = sorted(set(target.reads.values()) - set(ready))
    if missing:
        raise StageError(
            f"{node} reads {', '.join(missing)}, which is not built for this recipe.",
            where=f"home {session.home}",
            do=f"Run `loam run {session.recipe.name} --until {node}` first.",
        )
    return run_nodes(session, [target], perform, command, [node] if force else [], ready)


def _one(
    session: Session,
    step: Step,
    artifacts: Mapping[str, Artifact],
    perform: Perform,
    run_id: str,
    force: bool,
    tell: openlineage.Announcer,
) -> Artifact:
    home, recipe = session.home, session.recipe
    if step.node in session.imported:
        imported = session.imported[step.node]
        runs.record_node(home, run_id, step.node, NodeState.IMPORTED, manifest.artifact_id(imported))
        return imported
    inputs = {role: artifacts[read] for role, read in step.reads.items()}
    job = prepare(home, step.node, step.stage, recipe.sections[step.node], recipe.seed, recipe.runtime, inputs)
    tell.node(job, "start")
    try:
        result = perform(step.node, lambda report: _work(home, job, run_id, report, force))
    except BaseException as error:
        what = _first_line(error)
        tell.node(job, _state_of(error), message=what)
        with suppress(OSError):
            runs.record_node(home, run_id, step.node, _state_of(error), message=redact(what))
        raise
    runs.record_node(home, run_id, step.node, result.state, manifest.artifact_id(result.artifact), result.seconds)
    tell.node(job, result.state, result.artifact)
    if result.state != NodeState.CACHED:
        database.update(home)
    return result.artifact


def _state_of(error: BaseException) -> NodeState:
    return NodeState.FAILED if isinstance(error, Exception) else NodeState.INTERRUPTED


def _first_line(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return str(NodeState.INTERRUPTED)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _work(home: Path, job: NodeJob, run_id: str, report: Report, force: bool) -> Result:
    """Returns the result of the node. Removes credentials from its error, because Prefect records an error with its traceback."""
    try:
        return run_node(home, job, run_id, report, force)
    except Exception as error:
        if (clean := redacted(error)) is error:
            raise
        raise clean from None
