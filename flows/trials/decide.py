"""Decides between two recipes by pairs of runs: both sides of a pair share the seed, and a sequential test looks at the differences.

Guarantee: a decision that was stopped goes on with the same runs, because finished ones are cached by key, and may get more pairs later.
`<home>/decisions/<id>.json` is replaced after every pair; the id follows from both recipes and the metric.
Cost: two runs per pair from mix on; the nodes before mix once per side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import JsonValue

from flows.opened_recipe import Session
from flows.trials.repeated_runs import SEEDED_FROM, built, cpu_seconds, data_steps, with_seed
from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import RecipeError
from stages.core.contract.strict_json import BadJsonError, read_object
from stages.core.store import manifest
from stages.core.store.files import write_durably
from stages.queries.matched_sides import PRETRAIN, VALIDATION, ProxyMetric, refuse_unmatched, value_of
from stages.queries.paired_verdict import DecisionAnswer, PairedRuns, TwoWayDecision, decided

FOLDER = "decisions"


def refuse_unfit(a: Session, b: Session, metric: ProxyMetric) -> None:
    """Refuses two recipes between which nothing can be decided.

    Raises:
        RecipeError: They are the same, have two seeds, train no model, or have no benchmarks for the metric.
    """
    if a.recipe.seed != b.recipe.seed:
        what = f"A has seed {a.recipe.seed}, B has seed {b.recipe.seed}, but the runs of a pair share one."
        raise RecipeError(what, where=f"{a.recipe.source}, {b.recipe.source}: seed", do="Give both recipes the same seed.")
    if _content(a) == _content(b):
        raise RecipeError("A and B are the same recipe.", where=a.recipe.source, do="Change a value with --a or --b.")
    for side, session in (("A", a), ("B", b)):
        nodes = [step.node for step in session.steps(metric.node)]
        if PRETRAIN not in nodes or PRETRAIN in session.imported:
            raise RecipeError(f"{side} trains no model.", where=f"{session.recipe.source}: {PRETRAIN}", do="Let the recipe train one.")
        if metric.task != VALIDATION and "benchmarks" not in nodes:
            what, where = f"{side} has no benchmarks, but the metric is {metric}.", f"{session.recipe.source}: benchmarks"
            raise RecipeError(what, where=where, do="Give both sides the same benchmarks.files.")


def decide(a: Session, b: Session, metric: ProxyMetric, most_pairs: int, say: Callable[[str], None]) -> TwoWayDecision:
    """Runs pairs until the answer is known or `most_pairs` are done, and records them.

    Args:
        a: The first recipe.
        b: The second recipe, on the same home.
        metric: What is compared.
        most_pairs: Largest number of pairs, at least one.
        say: Gets one line per pair.

    Returns:
        The decision. What a run refuses, and sides that cannot be compared, are errors.
    """
    refuse_unfit(a, b, metric)
    decision = decision_id(a, b, metric)
    sides, earlier = (a, b), _recorded(a.home, decision)
    start = cpu_seconds()
    data = [built(side, data_steps(side, metric.node), f"decision {decision}") for side in sides]
    spent = cpu_seconds() - start
    pairs: list[PairedRuns] = []
    for number in range(most_pairs):
        seed = a.recipe.seed + number
        runs = [with_seed(side, metric.node, made, seed) for side, made in zip(sides, data, strict=True)]
        start = cpu_seconds()
        of_a, of_b = _run_pair(runs, metric, f"decision {decision}, pair {number + 1}")
        pair = _measured(metric, seed, of_a, of_b)
        pairs.append(replace(pair, cpu_seconds=max(cpu_seconds() - start, earlier.get(pair.artifacts, 0.0))))
        parameters = int(_figure(of_a, "parameters")), int(_figure(of_b, "parameters"))
        found = decided(decision, metric, pairs, most_pairs, parameters, spent)
        _record(a, b, found)
        say(_line(number + 1, pairs[-1], found))
        if found.answer != DecisionAnswer.UNDECIDED:
            break
    return found


def decision_id(a: Session, b: Session, metric: ProxyMetric) -> str:
    """Returns the id of a decision: the first 12 hex digits of a sha256 over both recipes without runtime and names, and the metric."""
    content = json.dumps([_content(a), _content(b), str(metric)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def record_path(home: Path, decision: str) -> Path:
    """Returns the path of a decision's record."""
    return home / FOLDER / f"{decision}.json"


def _run_pair(runs: list[Session], metric: ProxyMetric, label: str) -> list[dict[str, Artifact]]:
    """Returns the artifacts of both sides. Compares what they will read and be measured on before any model is trained."""
    steps = [run.steps(metric.node) for run in runs]
    mixed = [
        built(run, [step for step in of_run if step.node == SEEDED_FROM or step.node in run.imported], label)
        for run, of_run in zip(runs, steps, strict=True)
    ]
    refuse_unmatched(metric, (runs[0].recipe, mixed[0]), (runs[1].recipe, mixed[1]))
    return [built(run, of_run, label) for run, of_run in zip(runs, steps, strict=True)]


def _measured(metric: ProxyMetric, seed: int, a: Mapping[str, Artifact], b: Mapping[str, Artifact]) -> PairedRuns:
    """Returns a pair of finished runs, without its CPU seconds.

    Raises:
        RecipeError: Both sides are one artifact.
    """
    ids = manifest.artifact_id(a[metric.node]), manifest.artifact_id(b[metric.node])
    if ids[0] == ids[1]:
        what = f"A and B make the same artifact ({ids[0]}): what differs does not reach {metric.node}."
        raise RecipeError(what, where=metric.node, do="Compare settings that change the model.")
    tokens, flops = (sum(_figure(side, name) for side in (a, b)) for name in ("tokens", "flops"))
    return PairedRuns(seed, value_of(metric, a), value_of(metric, b), ids, int(tokens), flops, 0.0)


def _figure(artifacts: Mapping[str, Artifact], name: str) -> float:
    value = artifacts[PRETRAIN].summary[name]
    assert isinstance(value, int | float), name
    return value


def _line(number: int, pair: PairedRuns, found: TwoWayDecision) -> str:
    values = f"A {pair.a:.4f}, B {pair.b:.4f}, B - A {pair.difference:+.4f}"
    return f"pair {number} of at most {found.most_pairs} (seed {pair.seed}): {values}; e-value {found.e_value:.3g} of {1 / found.alpha:.0f}"


def _content(session: Session) -> dict[str, JsonValue]:
    """Returns what decides the artifacts of a recipe."""
    return {name: value for name, value in session.recipe.resolved().items() if name not in ("name", "description", "runtime")}


def _record(a: Session, b: Session, found: TwoWayDecision) -> None:
    path = record_path(a.home, found.decision)
    path.parent.mkdir(parents=True, exist_ok=True)
    recipes = {side: {"source": session.recipe.source, "resolved": session.recipe.resolved()} for side, session in (("a", a), ("b", b))}
    write_durably(path, json.dumps(recipes | asdict(found), indent=1) + "\n")


def _recorded(home: Path, decision: str) -> dict[tuple[str, ...], float]:
    """Returns the artifacts of a pair -> its CPU seconds, of the record of a decision; nothing if there is no record that can be read."""
    with suppress(OSError, BadJsonError, KeyError, TypeError, ValueError):
        pairs = read_object(record_path(home, decision))["pairs"]
        return {tuple(pair["artifacts"]): float(pair["cpu_seconds"]) for pair in pairs}
    return {}
