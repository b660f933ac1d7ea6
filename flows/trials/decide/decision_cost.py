"""Estimates what a decision between two recipes costs before anything runs.

Guarantee: read-only. Times come from earlier builds on this machine; without one there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flows.opened_recipe import Session, refuse_missing
from flows.trials.decide.matched_sides import ProxyMetric
from flows.trials.decide.paired_verdict import FEWEST_PAIRS, detectable_effect
from flows.trials.seeded_runs import untrained_steps
from flows.trials.trial_cost import expected_seconds, total_seconds
from stages.questions.plan import Planned
from stages.questions.training_size import training_size
from stages.record.contract.declaration import seconds_of
from stages.record.contract.states import NodeState

SIZES = ("parameters", "pretraining tokens", "pretraining FLOPs")


@dataclass(frozen=True)
class DecisionCost:
    """What a decision costs.

    Attributes:
        effect: Mean difference that the most pairs decide, in standard deviations of the pairs.
        a: Size of one training of A, as text; what is not known yet is left out.
        b: The same of B.
        seconds_once: Seconds of the nodes that all pairs share, as far as they are missing; None without an estimate.
        seconds_per_pair: Seconds of the two runs of a pair; None without an estimate. Runs that are cached count too.
    """

    metric: str
    fewest_pairs: int
    most_pairs: int
    effect: float
    a: Mapping[str, str]
    b: Mapping[str, str]
    seconds_once: float | None
    seconds_per_pair: float | None


def decision_cost(a: Session, b: Session, metric: ProxyMetric, most_pairs: int) -> DecisionCost:
    """Returns the cost of a decision. What a plan finds missing is an error. most_pairs: at least FEWEST_PAIRS."""
    sizes, seen, once, per_pair = [], set[str](), list[float | None](), list[float | None]()
    for session in (a, b):
        plan = session.plan(metric.node)
        refuse_missing(session, plan)
        shared = {step.node for step in untrained_steps(session, metric.node)}
        times = expected_seconds(session, metric.node, plan, seen)
        sizes.append({what: value for what, value in training_size(session.recipe, plan) if what in SIZES})
        once += [times[node] for node in times if node in shared]
        per_pair += [times.get(step.node, _taken(step)) for step in plan.steps if step.node not in shared]
    effect = detectable_effect(most_pairs)
    assert effect is not None, "most_pairs is at least FEWEST_PAIRS"
    return DecisionCost(str(metric), FEWEST_PAIRS, most_pairs, effect, sizes[0], sizes[1], total_seconds(once), total_seconds(per_pair))


def _taken(step: Planned) -> float | None:
    """Returns how long a node that is cached took; None for one that is imported or not built."""
    return seconds_of(step.artifact.manifest) if step.state == NodeState.CACHED and step.artifact else None
