"""Says which nodes of a plan would run at once, without running any: the rules of node_loop.py with the expected times.

Guarantee: it follows from the arguments alone. Times and memory of a run differ, so its groups can differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flows.concurrency.room import Need, Room, need_of, room_of
from flows.execute import waits_of

if TYPE_CHECKING:
    from flows.opened_recipe import Session
    from stages.questions.plan import Plan

UNKNOWN_S = 60.0
"""Expected seconds of a node of which nothing is known."""


def planned_groups(session: Session, plan: Plan, until: str, seconds: Mapping[str, float]) -> list[list[str]]:
    """Returns the groups of nodes of a plan that would run at once, in the order of time; without those that are part of another group.

    Args:
        session: The recipe and the home.
        plan: The plan.
        until: The last node of the run; empty for all.
        seconds: Node -> how long it is expected to take, for nodes of which that is known.
    """
    from stages.record.contract.states import READY

    steps = session.steps(until)
    built = {step.node: step.artifact for step in plan.steps if step.artifact is not None}
    done = {step.node for step in plan.steps if step.state in READY or step.node in session.imported}
    needs = {step.node: need_of(session, step, built) for step in steps}
    return groups(waits_of(steps, session.imported), needs, room_of(session.recipe.runtime), seconds, done)


def groups(
    waits: Mapping[str, Sequence[str]], needs: Mapping[str, Need], room: Room, seconds: Mapping[str, float], done: set[str]
) -> list[list[str]]:
    """Returns the groups of nodes that would run at once.

    Args:
        waits: Node -> nodes that must end before it starts, in pipeline order.
        needs: Node -> what it needs.
        room: What they may use together.
        seconds: Node -> how long it takes; UNKNOWN_S for others.
        done: Nodes that need not run.
    """
    ended, ends, found = set(done), dict[str, float](), list[list[str]]()
    now = 0.0
    while len(ended) < len(waits):
        for node, before in waits.items():
            if node in ended or node in ends or not ended.issuperset(before):
                continue
            if not room.holds([*(needs[one] for one in ends), needs[node]]):
                break
            ends[node] = now + seconds.get(node, UNKNOWN_S)
        together = [node for node in waits if node in ends]
        if len(together) > 1 and not any({*together} <= {*group} for group in found):
            found = [group for group in found if not {*group} <= {*together}] + [together]
        now = min(ends.values())
        over = {node for node, end in ends.items() if end <= now}
        ended |= over
        ends = {node: end for node, end in ends.items() if node not in over}
    return found
