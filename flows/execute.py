"""Runs the nodes of a pipeline in order, each through the function `perform`, and records the run. Does not import Prefect.

The lines of the nodes also go to the run's log (stages/record/run/run_log.py). An error gets a note that names the log.
Guarantee: the run's record names how the run ended, also after an error or an interruption, and the index contains what was published.
If a full disk prevents this, the run counts as killed, and the next update of the index adds what is missing.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flows.opened_recipe import Session, refuse_unbuilt
from flows.progress import WATCHER, announced, placed, recorded
from stages.questions.plan import Step
from stages.record.contract.declaration import Artifact, Context
from stages.record.contract.errors import LoamError, StageError
from stages.record.contract.secrets import redact, redacted
from stages.record.contract.states import NodeState, RunState
from stages.record.index import database
from stages.record.processes import connect_to_loopback_directly
from stages.record.run import openlineage
from stages.record.run.node_job import NodeJob, prepare
from stages.record.run.run_log import Write, log_path, run_log
from stages.record.run.runner import Event, Report, Result, run_node
from stages.record.run.stored_artifact import fetched, is_shared, put
from stages.record.store import continued_run, manifest, runs
from stages.record.store.object_store import ObjectStore, open_store

Perform = Callable[[str, Callable[[Report], Result]], Result]
NETWORK_ERRORS = (ConnectionError, TimeoutError)
RETRY_PAUSES_S = [2, 10, 30]
"""Seconds before each further attempt of a node that a network error stopped."""


@dataclass(frozen=True)
class _Running:
    """The run that is recorded: its id, who is told of its events, its log, and the store of its artifacts if it has one."""

    run_id: str
    tell: openlineage.Announcer
    log: Write
    store: ObjectStore | None


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
        name: a name for the run; empty for none but its numbered alias. It is taken from a stopped run of the same recipe; a name that is in use
            otherwise is a RecipeError.

    Returns:
        The run id.
    """
    home, recipe = session.home, session.recipe
    connect_to_loopback_directly(os.environ)  # of a flow too, whose process is a worker's
    nodes = [step.node for step in steps]
    store = open_store(recipe.runtime.store) if recipe.runtime.store else None
    with runs.holding(home, recipe, command) as run_id, run_log(home, run_id) as log, recorded(log), placed(nodes, session.expected_s):
        log(f"run {run_id} of the recipe {recipe.name} ({recipe.source}), home {home}: {json.dumps(dict(command))}", "")
        log(f"nodes: {', '.join(step.node for step in steps)}", "")
        artifacts, states = dict(ready or {}), Counter[str]()
        running = _Running(run_id, openlineage.announcer(home, recipe.runtime.openlineage, run_id), log, store)
        running.tell.run("start")
        try:
            if name:
                continued_run.give_name(home, name, run_id, recipe)
            trained = False
            for number, step in enumerate(steps):
                if step.stage.model and not trained and step.node not in session.imported:
                    trained = True
                    _refuse_too_little(session, steps, number, artifacts, running)
                artifacts[step.node], state = _one(session, step, artifacts, perform, running, step.node in force)
                states[state] += 1
        except BaseException as error:
            state = _state_of(error)
            log(_account(error), "")
            error.add_note(f"Log: {log_path(home, run_id)}")
            with suppress(OSError, LoamError):  # on a full disk, show the first error; the index is completed later
                runs.end_run(home, run_id, RunState(state))
                database.update(home)
            running.tell.run(state, _first_line(error))
            raise
        runs.end_run(home, run_id, RunState.DONE)
        log(f"done: {', '.join(f'{count} {state}' for state, count in states.items())}", "")
        database.update(home)
        running.tell.run(RunState.DONE)
        return run_id


def perform_here(node: str, work: Callable[[Report], Result]) -> Result:
    """Returns the result of a node's work, and shows it while it runs. Every run performs its nodes so, a Prefect task too.

    A network error is tried again after each pause of RETRY_PAUSES_S; the node then continues from its finished shards. Any other error
    would come again.

    Raises:
        StageError: The last attempt had a network error, too.
        BrokenPipeError: A pipe of this process has no reader; a ConnectionError that is not of the network.
    """
    pauses = iter(RETRY_PAUSES_S)
    while True:
        try:
            return announced(node, work)
        except BrokenPipeError:
            raise
        except NETWORK_ERRORS as error:
            if (pause := next(pauses, None)) is None:
                what, where = f"{node} failed {len(RETRY_PAUSES_S) + 1} times because of the network.", f"last answer: {error}"
                do = "Check the network and the host, then run the same command again; finished shards are kept."
                raise StageError(what, where=where, do=do) from error
            WATCHER.get()(Event("log", node, {"line": f"{error}; tries again in {pause} s"}))
            time.sleep(pause)


def run_one(session: Session, node: str, perform: Perform, command: Mapping[str, str | bool], force: bool) -> str:
    """Runs one node on existing artifacts. A node that is imported or off is a RecipeError, because it is not built.

    Args:
        session: the recipe and the home.
        node: the node.
        perform: called with the node's name and its work; returns the result of the work.
        command: the command and its options, for the record of the run.
        force: whether to build the node again although it is cached.

    An input of the node that is not built is a StageError.

    Returns:
        The run id.
    """
    target, ready = target_of(session, node)
    return run_nodes(session, [target], perform, command, [node] if force else [], ready)


def target_of(session: Session, node: str) -> tuple[Step, dict[str, Artifact]]:
    """Returns the step of one node, and the artifacts of the nodes before it.

    Raises:
        StageError: an input of the node is not built.
    """
    refuse_unbuilt(session, [node])
    target = session.steps(node)[-1]
    ready = {p.node: p.artifact for p in session.plan(node).steps if p.artifact is not None}
    missing = sorted(set(target.reads.values()) - set(ready))
    if missing:
        raise StageError(
            f"{node} reads {', '.join(missing)}, which is not built for this recipe.",
            where=f"home {session.home}",
            do=f"Run `loam run {session.given} --until {node}{session.options}` first.",
        )
    return target, ready


def _one(
    session: Session, step: Step, artifacts: Mapping[str, Artifact], perform: Perform, running: _Running, force: bool
) -> tuple[Artifact, NodeState]:
    """Returns (the artifact of a node, what the run made of the node), and records both."""
    home, recipe, run_id, tell = session.home, session.recipe, running.run_id, running.tell
    if step.node in session.imported:
        imported = session.imported[step.node]
        runs.record_node(home, run_id, step.node, NodeState.IMPORTED, manifest.artifact_id(imported))
        return imported, NodeState.IMPORTED
    inputs = {role: artifacts[read] for role, read in step.reads.items()}
    job = prepare(home, step.node, step.stage, recipe.sections[step.node], recipe.seed, recipe.runtime, inputs)
    tell.node(job, "start")
    try:
        result = perform(step.node, lambda report: _work(home, job, running, report, force))
    except BaseException as error:
        what = _first_line(error)
        tell.node(job, _state_of(error), message=what)
        with suppress(OSError):
            runs.record_node(home, run_id, step.node, _state_of(error), message=redact(what))
        raise
    runs.record_node(home, run_id, step.node, result.state, manifest.artifact_id(result.artifact), result.seconds)
    tell.node(job, result.state, result.artifact)
    if result.state != NodeState.CACHED or running.store:
        database.update(home)
    return result.artifact, result.state


def _refuse_too_little(session: Session, steps: Sequence[Step], number: int, artifacts: Mapping[str, Artifact], running: _Running) -> None:
    """Refuses data that are too few for a later training, before a step trains the first model.

    Args:
        session: The recipe and the home.
        steps: All steps of the run.
        number: The place of the step that trains.
        artifacts: Node -> what is built.
        running: The run.

    Raises:
        StageError: They are too few; the message is that of the later node.
    """
    home, recipe = session.home, session.recipe
    first, *later = steps[number:]
    for step in later:
        if step.stage.enough is None or step.node in session.imported:
            continue
        ctx = Context(
            node=step.node, seed=recipe.seed, runtime=recipe.runtime, scratch=home / "scratch", cache=home / "cache",
            progress=lambda *values: None, log=lambda line: None, drop=lambda *what: None, files=lambda name: (),
        )  # fmt: skip
        used = _made_from(step, steps)
        try:
            step.stage.enough(recipe.sections[step.node], {node: one for node, one in artifacts.items() if node in used}, ctx)
        except StageError as error:
            with suppress(OSError):
                runs.record_node(home, running.run_id, step.node, NodeState.FAILED, message=redact(_first_line(error)))
            raise StageError(error.what, where=f"{error.where}, found before {first.node} is trained", do=error.do) from error


def _made_from(step: Step, steps: Sequence[Step]) -> set[str]:
    """Returns the nodes that a step reads, directly or through others. What an imported artifact was made from is not among them."""
    by_name, used, queue = {one.node: one for one in steps}, set[str](), [*step.reads.values()]
    while queue:
        name = queue.pop()
        if name not in used:
            used.add(name)
            queue += by_name[name].reads.values() if name in by_name else ()
    return used


def _state_of(error: BaseException) -> NodeState:
    return NodeState.FAILED if isinstance(error, Exception) else NodeState.INTERRUPTED


def _first_line(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return str(NodeState.INTERRUPTED)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _account(error: BaseException) -> str:
    """Returns what the log says about the end of a run: the whole message of a designed error, the traceback of any other."""
    if not isinstance(error, Exception):
        return str(NodeState.INTERRUPTED)
    return f"failed: {error}" if isinstance(error, LoamError) else "failed\n" + "".join(traceback.format_exception(error)).rstrip()


def _work(home: Path, job: NodeJob, running: _Running, report: Report, force: bool) -> Result:
    """Returns the result of the node. Removes credentials from its error, because Prefect records an error with its traceback."""
    store = running.store if is_shared(job) else None

    def say(line: str) -> None:
        report(Event("log", job.node, {"line": line}))

    try:
        if store is None:
            return run_node(home, job, running.run_id, report, force)
        result = run_node(home, job, running.run_id, report, force, lambda own: fetched(store, home, job, own, say))
        put(store, home, job, result.artifact, say)
        return result
    except Exception as error:
        if (clean := redacted(error)) is error:
            raise
        running.log(_account(error), "")  # the new error has no traceback; the log removes the credentials from this one
        raise clean from None
