"""Compares two artifacts or two runs: scores, settings, sizes of the data, and every other value of their manifests.

Guarantee: read-only; it reads manifests, scores of single items and the index. A difference of scores is shown only by a paired test on the
same items (stages/evaluation/statistics/verdicts.py), corrected over all scores that are compared (Holm).
Cost: two manifests per node that differs; the tests take about a second, most of it the import of scipy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from stages.questions.lineage import read
from stages.record.contract.declaration import Artifact
from stages.record.contract.errors import RecipeError
from stages.record.contract.states import NodeState
from stages.record.index import database, lookup
from stages.record.store import manifest

if TYPE_CHECKING:
    from stages.evaluation.statistics.verdicts import Verdict

SETTINGS = ("config.", "seed", "files.", "packages.")
"""Beginnings of the values that a recipe decides: settings, and what it names outside of the home."""
CODE = ("code", "version", "distributions.")
"""Beginnings of the values that the installed code decides."""
DATA = frozenset({"warc", "documents", "benchmarks", "conversations", "preferences", "tokens", "mixture"})
"""Kinds of artifacts that are data; rows of other kinds are parameters, items or claims."""
VALIDATION, BITS = "validation", "bits_per_byte"
ItemValues = Mapping[tuple[str, str], Mapping[str, float]]
"""(task, metric) -> item -> value of this item."""


class Difference(TypedDict):
    """A value that differs between two artifacts.

    Attributes:
        what: its dotted name in the manifest, for example "config.threshold".
        a: the value of the first artifact; None if it has none.
        b: the value of the second artifact; None if it has none.
    """

    what: str
    a: object
    b: object


class NodeDifference(Difference):
    """A difference between two runs. node: where they differ. what: also "reached" (bool), "artifact" (ids), and "import" in an overview."""

    node: str


class ScoreDifference(TypedDict):
    """A score that two runs have. difference: b - a. p: corrected p value, or None without a test. shown: "a is better", or why not."""

    model: str
    task: str
    metric: str
    a: float
    b: float
    difference: float
    p: float | None
    shown: str


class SizeDifference(TypedDict):
    """Rows and tokens of a node's artifact in two runs, where one of them differs."""

    node: str
    rows_a: int
    rows_b: int
    tokens_a: int
    tokens_b: int


@dataclass(frozen=True)
class RunsOverview:
    """What matters first about two runs.

    Attributes:
        scores: scores of both that were measured on different models; empty if no model differs or none was scored.
        settings: values that the recipes decide. A node that a run imported has one row, "import", in place of its values.
        data: sizes of data that differ.
        code: nodes that other code or other versions of packages built, without imported ones.
        only_a: nodes that only the first run reached.
        only_b: nodes that only the second run reached.
        scored_a: "MODEL TASK METRIC" of the main scores that only the first run has, of models that both scored.
        scored_b: those that only the second run has.
        gone: nodes whose artifacts `gc` has removed, so that they cannot be compared.
        others: number of further differences.
    """

    scores: Sequence[ScoreDifference]
    settings: Sequence[NodeDifference]
    data: Sequence[SizeDifference]
    code: Sequence[str]
    only_a: Sequence[str]
    only_b: Sequence[str]
    scored_a: Sequence[str]
    scored_b: Sequence[str]
    gone: Sequence[str]
    others: int


def diff(home: Path, a: str, b: str) -> list[Difference]:
    """Compares two artifacts. An unknown name is a RecipeError.

    Args:
        home: the home folder.
        a: an artifact, by any name that `loam lineage show` accepts.
        b: the other artifact.

    Returns:
        The differences; none if key and content are equal.
    """
    return _differences(read(home, a), read(home, b))


def compare_runs(home: Path, a: str, b: str) -> list[NodeDifference]:
    """Compares two runs. A run that is missing or has no nodes is a RecipeError.

    Args:
        home: the home folder.
        a: a run, by id, alias ("tiny-7") or given name.
        b: the other run.

    Returns:
        The differences, in the order of the nodes. A node that only one run reached gives one row.
    """
    rows: list[NodeDifference] = []
    for node, left, right in _differing(home, a, b):
        if not left or not right:
            rows.append({"node": node, "what": "reached", "a": bool(left), "b": bool(right)})
            continue
        first, second = _artifact(home, left), _artifact(home, right)
        if first is None or second is None:
            rows.append({"node": node, "what": "artifact", "a": left, "b": right})
            continue
        rows.extend({"node": node, **row} for row in _differences(first, second))
    return rows


def overview(home: Path, a: str, b: str) -> RunsOverview:
    """Compares two runs for one screen. Takes the arguments of `compare_runs` and raises its errors.

    Returns:
        The scores first, then what differs in the recipes and in the data.
    """
    rows = compare_runs(home, a, b)
    found = [(node, _artifact(home, left), _artifact(home, right)) for node, left, right in _differing(home, a, b) if left and right]
    both = [(node, first, second) for node, first, second in found if first is not None and second is not None]
    reached = [row for row in rows if row["what"] == "reached"]
    imported = _imports(home, a, b, [node for node, _, _ in both])
    nodes = {row["node"] for row in imported}
    settings = [row for row in rows if row["what"].startswith(SETTINGS) and row["node"] not in nodes]
    code = [row for row in rows if row["what"].startswith(CODE) and row["node"] not in nodes]
    gone = [row["node"] for row in rows if row["what"] == "artifact"]
    data = [_sizes(node, first, second) for node, first, second in both if first.manifest["kind"] in DATA and _size(first) != _size(second)]
    sized = {row["node"] for row in data}
    sizes = [row for row in rows if row["what"] in ("rows", "tokens") and row["node"] in sized]
    return RunsOverview(
        _scores(both),
        [*imported, *settings],
        data,
        tuple(dict.fromkeys(row["node"] for row in code)),
        [row["node"] for row in reached if row["a"]],
        [row["node"] for row in reached if row["b"]],
        _scored_alone(both),
        _scored_alone([(node, second, first) for node, first, second in both]),
        gone,
        len(rows) - len(reached) - len(settings) - len(code) - len(gone) - len(sizes),
    )


def are_runs(home: Path, a: str, b: str) -> bool:
    """Finds whether two names mean runs.

    Args:
        home: the home folder.
        a: a name of a run or of an artifact.
        b: another one.

    Returns:
        True if both mean runs, False if none does.

    Raises:
        RecipeError: exactly one of them means a run.
    """
    runs = {name for name in (a, b) if lookup.find_run(home, name)}
    if len(runs) == 1 and a != b:
        (run,) = runs
        other = b if run == a else a
        raise RecipeError(
            f"{run!r} is a run, but {other!r} is not.",
            where=str(home),
            do="Name two runs (`loam runs` lists them), or two checkpoints or models.",
        )
    return bool(runs)


def _differing(home: Path, a: str, b: str) -> Iterator[tuple[str, str, str]]:
    """Yields (node, artifact of a, artifact of b) of every node whose artifact differs; an artifact is empty if its run has none."""
    ours, theirs = _nodes(home, a), _nodes(home, b)
    for node in dict.fromkeys([*ours, *theirs]):
        if ours.get(node) != theirs.get(node):
            yield node, ours.get(node, ""), theirs.get(node, "")


def _imports(home: Path, a: str, b: str, nodes: Sequence[str]) -> list[NodeDifference]:
    """Returns one row for each of the nodes that a run imported: "imported (NAME)", with the name in its recipe, or "built"."""
    ours, theirs = _imported(home, a), _imported(home, b)
    return [
        {"node": node, "what": "import", "a": ours.get(node, "built"), "b": theirs.get(node, "built")}
        for node in nodes
        if node in ours or node in theirs
    ]


def _imported(home: Path, run: str) -> dict[str, str]:
    """Returns node -> "imported (NAME)" of the nodes that a run imported."""
    sql = "SELECT node, resolved FROM node_run JOIN run USING (run_id) WHERE run_id = ? AND node_run.state = ?"
    rows = database.query(home, sql, [lookup.run_id_of(home, run), str(NodeState.IMPORTED)])[1]
    return {
        node: f"imported ({json.loads(resolved).get('import', {}).get(node, 'by a name that is not recorded')})" for node, resolved in rows
    }


def _size(artifact: Artifact) -> tuple[int, int]:
    return artifact.manifest["rows"], artifact.manifest["tokens"]


def _sizes(node: str, a: Artifact, b: Artifact) -> SizeDifference:
    (rows_a, tokens_a), (rows_b, tokens_b) = _size(a), _size(b)
    return {"node": node, "rows_a": rows_a, "rows_b": rows_b, "tokens_a": tokens_a, "tokens_b": tokens_b}


def _scored_alone(both: Sequence[tuple[str, Artifact, Artifact]]) -> list[str]:
    """Returns "MODEL TASK METRIC" of every main score that the first artifact of a node has and the second has not."""
    return [
        " ".join(part for part in (node.partition("@")[2], task, metric) if part)
        for node, a, b in both
        if a.manifest["kind"] == "scores" == b.manifest["kind"]
        for task, metric in sorted(main_scores(a).keys() - main_scores(b).keys())
    ]


def _scores(both: Sequence[tuple[str, Artifact, Artifact]]) -> list[ScoreDifference]:
    """Returns the difference of every main score that both runs have. The p values are corrected over all of them."""
    measured: list[tuple[ScoreDifference, Verdict]] = []
    for node, a, b in both:
        if a.manifest["kind"] != "scores" or b.manifest["kind"] != "scores":
            continue
        ours, theirs = main_scores(a), main_scores(b)
        items_a, items_b = item_values(a), item_values(b)
        for task, metric in (name for name in ours if name in theirs):
            before, after = ours[task, metric], theirs[task, metric]
            row: ScoreDifference = {
                "model": node.partition("@")[2], "task": task, "metric": metric, "a": before, "b": after, "difference": after - before,
                "p": None, "shown": "",
            }  # fmt: skip
            measured.append((row, tested(task, metric, items_a, items_b, b.manifest["seed"])))
    if not measured:
        return []
    from stages.evaluation.statistics.verdicts import VerdictOutcome, holm

    words = {
        VerdictOutcome.REACHED: "b is better",
        VerdictOutcome.OPPOSITE: "a is better",
        VerdictOutcome.NOT_SHOWN: "no difference is shown",
    }
    return [
        {**row, "p": verdict.p_adjusted, "shown": words[verdict.outcome] + (f": {verdict.note}" if verdict.note else "")}
        for (row, _), verdict in zip(measured, holm([verdict for _, verdict in measured]), strict=True)
    ]


def tested(task: str, metric: str, a: ItemValues, b: ItemValues, seed: int) -> Verdict:
    """Returns the verdict on whether b is better than a, paired over the items. A positive difference of the verdict speaks for b."""
    import numpy as np

    from stages.evaluation.statistics import verdicts
    from stages.evaluation.statistics.claims import ONE_NUMBER, OTHER_ITEMS

    claim, lower = "b is better than a", (task, metric) == (VALIDATION, BITS)
    name = (task, "nll") if lower else (task, metric)
    ours, theirs = b.get(name, {}), a.get(name, {})
    sizes = b.get((task, "bytes"), {}) if lower else dict.fromkeys(ours, 1.0)
    if not ours or not theirs:
        return verdicts.untested(claim, metric, 0, ONE_NUMBER)
    if not ours.keys() == theirs.keys() == sizes.keys() or (lower and a.get((task, "bytes")) != sizes):
        return verdicts.untested(claim, metric, 0, OTHER_ITEMS)
    items = sorted(ours)
    new, old = (np.array([values[item] for item in items]) for values in (ours, theirs))
    if not lower and np.isin([new, old], (0, 1)).all():
        return verdicts.mcnemar_test(claim, metric, new, old)
    gains = (old - new) / math.log(2) if lower else new - old
    return verdicts.sign_flip_test(claim, metric, gains, np.array([sizes[item] for item in items]), seed)


def main_scores(artifact: Artifact) -> dict[tuple[str, str], float]:
    """Returns (task, metric) -> value of the main metric of every task."""
    entries = json.loads((artifact.path / "scores.json").read_text(encoding="utf-8"))
    return {(entry["task"], entry["metric"]): entry["value"] for entry in entries if entry["primary"]}


def item_values(artifact: Artifact) -> ItemValues:
    """Returns the values of the single items of an artifact of evaluate."""
    from stages.record.tables.parquet import read_rows

    values: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_rows(artifact.path / "samples.parquet"):
        values.setdefault((row["task"], row["metric"]), {})[row["item_id"]] = row["value"]
    return values


def _nodes(home: Path, run: str) -> dict[str, str]:
    sql = "SELECT node, artifact_id FROM node_run WHERE run_id = ? ORDER BY ordinal"
    found: dict[str, str] = dict(database.query(home, sql, [lookup.run_id_of(home, run)])[1])
    if not found:
        raise RecipeError(f"Run {run!r} has no nodes.", where=str(home), do="`loam runs` lists the runs.")
    return found


def _artifact(home: Path, name: str) -> Artifact | None:
    """Returns the artifact of an id; None if `gc` has removed it."""
    folder = home / "artifacts" / name
    return manifest.read_artifact(folder) if (folder / manifest.NAME).is_file() else None


def _differences(a: Artifact, b: Artifact) -> list[Difference]:
    left, right = dict(_values(a)), dict(_values(b))
    return [
        {"what": name, "a": left.get(name), "b": right.get(name)}
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def _values(artifact: Artifact) -> Iterator[tuple[str, object]]:
    """Yields the comparable values of a manifest by dotted name: key parts, sizes, record counts, summary, digest and code; no times."""
    record = artifact.manifest
    yield from _flattened("", record["key_parts"])
    for name in ("rows", "tokens", "record_counts", "summary"):
        yield from _flattened(name, record[name])
    yield "digest", record["digest"][:12]
    yield "code", record["code"]["stage"][:12]


def _flattened(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields the values in nested mappings by dotted name. Digests of inputs are shortened to 12 characters."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flattened(f"{name}.{key}".lstrip("."), inner)
    else:
        yield name, value[:12] if isinstance(value, str) and name.startswith("inputs.") else value
