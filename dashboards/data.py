"""Reads what the dashboard shows from the index and its views: nodes with their state and summary, artifacts, loss, scores and written texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.evaluation.charts.chart import line_chart, thinned
from stages.questions.tracing.document_rows import in_files
from stages.record.contract.report_section import figure
from stages.record.contract.states import NodeState
from stages.record.index import database

if TYPE_CHECKING:
    from stages.questions.lineage import RunRow
    from stages.record.contract.declaration import Stage

STATE_CLASS: dict[str, str] = {
    NodeState.BUILT: "good",
    NodeState.CACHED: "good",
    NodeState.IMPORTED: "good",
    NodeState.IDENTICAL: "good",
    NodeState.DIFFERS: "wait",
    NodeState.FAILED: "bad",
    NodeState.INTERRUPTED: "bad",
}
MAX_RUNS = 30
"""Runs that a page lists."""
MAX_TEXTS = 200
"""Texts of models that a page lists."""

Summary = Mapping[str, str]
"""Name of a summary value -> the value as text."""


@dataclass(frozen=True)
class ShownNode:
    """A node in a run.

    Attributes:
        node: Name of the node.
        state: Its state in the run.
        style: CSS class of the state.
        seconds: Its duration as text; empty if it did not run.
        message: Why it failed; empty otherwise.
        summary: The values of its artifact's summary that its stage declares.
    """

    node: str
    state: str
    style: str
    seconds: str
    message: str
    summary: Summary


@dataclass(frozen=True)
class NodeRun:
    """A node in one of several runs: the run, the node's line, and its artifact with its size and what that counts. Text is empty without an artifact."""

    run_id: str
    line: ShownNode
    artifact: str
    size: str
    tokens: str


@dataclass(frozen=True)
class WrittenText:
    """A text that a model wrote during its training.

    Attributes:
        node: Node of the training.
        step: Finished steps.
        prompt: What the model continued; in sft, what the user said.
        text: What it wrote.
        artifact: Id of the checkpoint that the training made.
    """

    node: str
    step: int
    prompt: str
    text: str
    artifact: str


def chosen_run(runs: Sequence[RunRow], name: str) -> RunRow:
    """Returns the run that a name means: id, alias or given name; the first run if it is empty or unknown. runs: at least one."""
    return next((run for run in runs if name and name in (run["run_id"], run["alias"], *run["name"].split(", "))), runs[0])


def node_lines(home: Path, stages: Mapping[str, Stage], run: str) -> list[ShownNode]:
    """Returns the line of every node in a run, in pipeline order.

    Args:
        home: The home folder.
        stages: Node -> its stage.
        run: Id of the run.
    """
    sql = "SELECT node, state, seconds, artifact_id, message FROM node_run WHERE run_id = ?"
    found = {node: rest for node, *rest in database.query(home, sql, [run])[1]}
    summaries = _summaries(home, [artifact for _, _, artifact, _ in found.values()])
    lines = []
    for node, stage in stages.items():
        state, seconds, artifact, message = found.get(node, (NodeState.NOT_RUN, None, "", ""))
        lines.append(_node_line(node, stage, state, seconds, message, summaries.get(artifact, {})))
    return lines


def node_runs(home: Path, node: str, stage: Stage) -> list[NodeRun]:
    """Returns what the newest runs made of a node, newest first.

    Args:
        home: The home folder.
        node: Name of the node.
        stage: Its stage.
    """
    sql = (
        "SELECT n.run_id, n.state, n.seconds, n.message, n.artifact_id, a.rows, a.unit, a.tokens FROM node_run n JOIN run r ON r.run_id = n.run_id "
        "LEFT JOIN artifact a ON a.artifact_id = n.artifact_id WHERE n.node = ? ORDER BY r.seq DESC, n.run_id LIMIT ?"
    )
    found = database.query(home, sql, [node, MAX_RUNS])[1]
    summaries = _summaries(home, [row[4] for row in found])
    return [
        NodeRun(
            run,
            _node_line(node, stage, state, seconds, message, summaries.get(artifact, {})),
            artifact,
            f"{_text(rows)} {unit or ''}".strip(),
            _text(tokens),
        )
        for run, state, seconds, message, artifact, rows, unit, tokens in found
    ]


def artifact_lines(home: Path, run: str) -> list[Mapping[str, str]]:
    """Returns the artifacts of a run in the order of its nodes, as rows of text by column. run: id of the run."""
    columns = ("artifact", "kind", "rows", "unit", "tokens", "bytes", "digest", "built_by")
    rows = database.query(
        home,
        "SELECT a.artifact_id, a.kind, a.rows, a.unit, a.tokens, a.bytes, left(a.digest, 12), a.run_id "
        "FROM node_run n JOIN artifact a USING (artifact_id) WHERE n.run_id = ? ORDER BY n.ordinal",
        [run],
    )[1]
    return [dict(zip(columns, map(_text, row), strict=True)) for row in rows]


def loss_charts(home: Path, run: str) -> list[str]:
    """Returns one SVG chart of loss by step per training node of a run. run: id of the run."""
    columns, order = "t.node, t.step, t.loss, t.validation_loss", "n.ordinal, t.step"
    train: dict[str, list[tuple[float, float]]] = {}
    validation: dict[str, list[tuple[float, float]]] = {}
    for node, step, loss, validation_loss in _rows_of_run(home, run, "step_metrics", columns, order):
        for series, value in ((train, loss), (validation, validation_loss)):
            points = series.setdefault(node, [])
            if value is not None:
                points.append((float(step), value))
    return [
        line_chart({"train": thinned(points), "validation": validation[node]}, f"{node}: loss by step", "step", "loss")
        for node, points in train.items()
    ]


def score_lines(home: Path, run: str) -> list[Mapping[str, str]]:
    """Returns the summary metrics of the evaluations of a run: one row per metric, one column per model. run: id of the run."""
    rows = database.query(
        home,
        "SELECT m.node, m.name, m.value FROM metric m JOIN node_run n USING (artifact_id) "
        "WHERE n.run_id = ? AND starts_with(m.node, 'evaluate@') AND m.value IS NOT NULL ORDER BY m.name, n.ordinal",
        [run],
    )[1]
    models = list(dict.fromkeys(node.partition("@")[2] for node, _, _ in rows))
    table: dict[str, dict[str, str]] = {}
    for node, name, value in rows:
        line = table.setdefault(name, {"metric": name, **dict.fromkeys(models, "")})
        line[node.partition("@")[2]] = f"{value:.4g}"
    return list(table.values())


def written_texts(home: Path, run: str) -> list[WrittenText]:
    """Returns the last MAX_TEXTS texts that the models of a run wrote during their training, the last node and step first. run: id of the run."""
    order = f"n.ordinal DESC, t.step DESC, t.prompt LIMIT {MAX_TEXTS}"
    return [WrittenText(*row) for row in _rows_of_run(home, run, "text_samples", "t.node, t.step, t.prompt, t.text, n.artifact_id", order)]


def _rows_of_run(home: Path, run: str, view: str, columns: str, order: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a view that the artifacts of a run have, and opens no other files.

    Args:
        home: the home folder.
        run: id of the run.
        view: a view of side tables.
        columns: what is selected, of the view t and of the nodes n of the run.
        order: what follows ORDER BY.
    """
    sql = "SELECT DISTINCT path FROM node_run JOIN side_table USING (artifact_id) WHERE run_id = ? AND view = ?"
    paths = [f"/{path}" for (path,) in database.query(home, sql, [run, view])[1]]
    if not paths:
        return []
    sql = (
        f"SELECT {columns} FROM {view} t JOIN node_run n USING (artifact_id) "
        f"WHERE n.run_id = ? AND {in_files(paths)} ORDER BY {order}"  # DuckDB decides in_files before it opens a file
    )
    return database.query(home, sql, [run, *paths])[1]


def _node_line(node: str, stage: Stage, state: str, seconds: float | None, message: str, summary: Summary) -> ShownNode:
    """Returns a node's line with the values that its stage declares. summary: all values of the artifact's summary."""
    declared = {name: summary[name] for name in stage.summary if name in summary}
    style = STATE_CLASS.get(state, "soft")
    return ShownNode(node, state, style, f"{seconds:.1f}" if seconds is not None else "", message, declared)


def _summaries(home: Path, artifacts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns artifact -> the values of its summary as text. Artifacts without a summary are left out."""
    sql = "SELECT artifact_id, name, value, text FROM metric WHERE list_contains(?::VARCHAR[], artifact_id)"
    wanted: Sequence[str] = sorted({artifact for artifact in artifacts if artifact})
    found: dict[str, dict[str, str]] = {}
    for artifact, name, value, text in database.query(home, sql, [wanted])[1] if wanted else ():
        found.setdefault(artifact, {})[name] = text or "" if value is None else figure(int(value) if value.is_integer() else value)
    return found


def _text(value: str | int | None) -> str:
    """Returns a value of a table as text, a number with thousands separators."""
    return f"{value:,}" if isinstance(value, int) else value or ""
