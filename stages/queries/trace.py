"""Where a record went, and what a training step saw: URL -> captures -> verdicts -> token spans -> rows -> steps, and back.

A verdict that dropped or changed a document comes with its evidence (stages/queries/drop_evidence.py).
Read-only. Every answer starts from one artifact, the newest pretrained checkpoint unless another or a run is named, and follows what
that one was made from: artifacts of other runs have no part in it. A step's rows come from the `steps` side table of pretraining, which is
written from the same stateless permutation that the trainer uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from stages.core.contract.errors import RecipeError, StageError
from stages.core.index import database
from stages.queries.drop_evidence import evidence

PIPELINE = ("extract", "filter", "dedup", "decontaminate")
STARTS = ("pretrain", "mix", "encode", "decontaminate", "dedup", "filter", "extract")  # where an answer starts, the first that is there


@dataclass(frozen=True)
class Start:
    """The artifact that an answer starts from, and what it was made from.

    run: alias of a run that has it, empty where none is recorded. of: (node, kind of side table) -> "/<node>/<folder>/" as it stands in paths,
    so that `contains(file, …)` opens only these files. gone: artifacts that it was made from and that are not in this home.
    """

    artifact: str
    alias: str
    node: str
    run: str
    of: Mapping[tuple[str, str], str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def named(self) -> dict[str, str]:
        """What is shown of it."""
        return {"artifact": self.artifact, "alias": self.alias, "run": self.run}

    @property
    def judged(self) -> list[str]:
        """What judged documents; where a stage was imported, the documents begin there."""
        return [self.of[node, "decisions"] for node in PIPELINE if (node, "decisions") in self.of]


def start(home: Path, run: str = "", checkpoint: str = "", *, trained: bool = False) -> Start:
    """Where an answer starts. run: a run; its checkpoint, or how far it came. checkpoint: an artifact by any name.

    Without both: the newest pretrained checkpoint, or the newest artifact of the node furthest down the pipeline. What was imported without the
    documents it was made from is passed over, unless only a checkpoint can answer (`trained`).
    Raises StageError when there is no such run or artifact, or a run without any.
    """
    if checkpoint:
        found = str(database.latest_artifact(home, checkpoint)["artifact_id"])
    elif run:
        found = _of_run(home, database.run_id_of(home, run), run)
    else:
        found = next((name for node in STARTS if (name := _newest(home, node, made=node not in PIPELINE and not trained))), "")
        if not found:
            raise StageError("No document is recorded here yet.", where=str(home), do="Run a recipe up to extract first.")
    return database.asking(home, lambda ask: _followed(ask, found, run))


def trace_url(home: Path, of: Start, url: str) -> list[dict[str, Any]]:
    """Every capture of a URL: verdict, reason and evidence at each stage, its tokens, and the pretraining steps that saw it.

    A URL that ends in "%" is a prefix. Raises StageError when no capture is known.
    """
    seen = []
    condition = "starts_with(url, ?)" if url.endswith("%") else "url = ?"
    if of.judged:
        sql = f"SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(of.judged)} AND {condition} AND doc_id IS NOT NULL ORDER BY url, doc_id LIMIT 1000"
        seen = database.records(home, sql, [*of.judged, url.removesuffix("%")])
    if not seen:
        raise StageError(
            f"No capture of {url} is recorded in what {of.alias} was made from.",
            where=_where(home, of),
            do="Give the URL as crawled; end it with % to match a prefix; --run or --checkpoint asks about another one.",
        )
    return database.asking(home, lambda ask: [_document(ask, home, of, str(row["doc_id"])) for row in seen])


def trace_doc(home: Path, of: Start, doc_id: str) -> dict[str, Any]:
    """One document: its verdicts in pipeline order with their evidence, its token spans, and the rows and steps of pretraining that held it.

    Raises RecipeError for what is no doc_id, StageError when it is not recorded.
    """
    try:
        wanted = str(UUID(doc_id))
    except ValueError:
        raise RecipeError(
            f"{doc_id!r} is no doc_id.", do="A doc_id is a UUID: take one from `loam trace --url` or the decisions view."
        ) from None
    return database.asking(home, lambda ask: _document(ask, home, of, wanted))


def trace_step(home: Path, of: Start, step: int) -> list[dict[str, Any]]:
    """The documents in one global batch of pretraining: row, doc_id, URL, source and tokens, in batch order.

    Raises StageError when nothing was trained, or not that step.
    """
    trained = _trained(of)
    if not trained:
        do = "Name a checkpoint with --checkpoint, or run the recipe up to pretrain."
        raise StageError(f"{of.alias} was made from no pretraining, so there are no steps.", where=str(home), do=do)
    pretrain = of.of.get(("pretrain", "steps"), "")
    first: int | None = None
    last = 0
    if pretrain:
        ((first, last),) = database.query(home, "SELECT min(step), max(step) FROM steps WHERE contains(file, ?)", [pretrain])[1]
    if first is None:
        raise StageError("Pretraining took no step here: its checkpoint was imported.", where=trained, do="Look where it was trained.")
    if ("mix", "row_spans") not in of.of or not of.judged:
        what = f"What {of.alias} was made from is not all in this home: {', '.join(of.gone) or 'no mixture or documents'}."
        raise StageError(what, where=str(home), do="Look where it was trained, or run its recipe again.")
    if not first <= step <= last:
        raise StageError(f"There is no step {step}.", where=trained, do=f"The steps are {first} to {last}.")
    return database.records(
        home,
        "SELECT s.position, s.row, r.piece, r.doc_id::VARCHAR AS doc_id, d.url, r.source, r.length AS tokens FROM steps s "
        "JOIN row_spans r ON r.row = s.row AND r.part = 'train' AND contains(r.file, ?) "
        f"LEFT JOIN (SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(of.judged)}) d ON d.doc_id = r.doc_id "
        "WHERE contains(s.file, ?) AND s.step = ? ORDER BY s.position, r.piece",
        [of.of["mix", "row_spans"], *of.judged, pretrain, step],
    )


def _newest(home: Path, node: str, made: bool) -> str:
    """The artifact of a node that the newest run has; empty when there is none. made: only one that was made from others."""
    sql = (
        "SELECT a.artifact_id FROM artifact a LEFT JOIN node_run n USING (artifact_id) LEFT JOIN run ON run.run_id = n.run_id "
        "WHERE a.node = $1 AND (NOT $2 OR EXISTS (FROM edge WHERE child = a.artifact_id AND input)) "
        "ORDER BY coalesce(run.seq, 0) DESC, n.ordinal DESC, try_cast(regexp_extract(a.alias, '[0-9]+$') AS BIGINT) DESC LIMIT 1"
    )
    found = database.query(home, sql, [node, made])[1]
    return str(found[0][0]) if found else ""


def _of_run(home: Path, run_id: str, name: str) -> str:
    """The artifact of a run that is furthest down the pipeline."""
    sql = "SELECT n.node, artifact_id FROM node_run n JOIN artifact USING (artifact_id) WHERE n.run_id = ? ORDER BY ordinal"
    there: dict[str, str] = dict(database.query(home, sql, [run_id])[1])
    for node in STARTS:
        if node in there:
            return there[node]
    raise StageError(f"Run {name!r} has no documents in this home.", where=str(home), do="`loam lineage runs` lists the runs.")


def _followed(ask: database.Ask, artifact: str, run: str) -> Start:
    """The start with all that it was made from, nearest first: the corpora that dedup compares with are another's documents."""
    distance: dict[str, int] = {}
    reached = {artifact}
    while reached:
        distance |= dict.fromkeys(reached, max(distance.values(), default=-1) + 1)
        sql = "SELECT DISTINCT parent FROM edge WHERE input AND child IN (SELECT unnest($1::VARCHAR[]))"
        reached = {parent for (parent,) in ask(sql, [list(reached)])[1]} - distance.keys()
    sql = "SELECT artifact_id, alias, node, number, run_id FROM artifact WHERE artifact_id IN (SELECT unnest($1::VARCHAR[]))"
    known = {row[0]: row for row in ask(sql, [list(distance)])[1]}
    nearest: dict[str, str] = {}
    for name in sorted(known, key=lambda name: (distance[name], -known[name][3])):
        nearest.setdefault(known[name][2], name)
    tables = ask(
        "SELECT DISTINCT node, kind, artifact_id FROM side_table WHERE artifact_id IN (SELECT unnest($1::VARCHAR[]))", [list(known)]
    )[1]
    of = {(node, kind): f"/{name}/" for node, kind, name in tables if nearest.get(node) == name}
    # The run that was asked for, else the one that built it, else the newest that has it.
    runs = ask(
        "SELECT alias FROM run LEFT JOIN node_run n ON n.run_id = run.run_id AND n.artifact_id = $1 "
        "WHERE n.artifact_id IS NOT NULL OR run.run_id = $2 "
        "ORDER BY run.alias = $3 OR run.run_id = $3 DESC, run.run_id = $2 DESC, seq DESC LIMIT 1",
        [artifact, known[artifact][4], run],
    )[1]
    gone = tuple(sorted(set(distance) - known.keys()))
    return Start(artifact, known[artifact][1], known[artifact][2], runs[0][0] if runs else "", of, gone)


def _trained(of: Start) -> str:
    """The pretraining artifact, empty where there is none."""
    if of.node == "pretrain":
        return of.artifact
    return next((path.strip("/") for (node, _), path in of.of.items() if node == "pretrain"), "")


def _where(home: Path, of: Start) -> str:
    return f"{of.artifact} of {home}" + (f", without {', '.join(of.gone)}, which are not in this home" if of.gone else "")


def _any(paths: list[str]) -> str:
    """A condition on `file`, with a parameter per path."""
    return f"({' OR '.join(['contains(file, ?)'] * len(paths))})"


def _document(ask: database.Ask, home: Path, of: Start, doc_id: str) -> dict[str, Any]:
    decisions = []
    if of.judged:
        sql = f"SELECT * FROM decisions WHERE {_any(of.judged)} AND doc_id = ?::UUID ORDER BY list_position(?, node)"
        decisions = _dicts(ask(sql, [*of.judged, doc_id, list(PIPELINE)]))
    if not decisions:
        raise StageError(
            f"No document {doc_id} is recorded in what {of.alias} was made from.",
            where=_where(home, of),
            do="Take a doc_id from `loam trace --url` or the decisions view; --run or --checkpoint asks about another one.",
        )
    result: dict[str, Any] = {"doc_id": doc_id, "url": decisions[0]["url"]}
    result["verdicts"] = [
        {"node": d["node"], "artifact": d["artifact_id"], "verdict": d["verdict"], "reason": d["reason"]}
        | asdict(evidence(ask, d["artifact_id"], d))
        for d in decisions
    ]
    result["tokens"], result["rows"], result["steps"] = [], [], []
    if spans := of.of.get(("encode", "spans")):
        sql = "SELECT shard, start, length FROM token_spans WHERE contains(file, ?) AND doc_id = ?::UUID"
        result["tokens"] = _dicts(ask(sql, [spans, doc_id]))
    if rows := of.of.get(("mix", "row_spans")):
        sql = "SELECT part, row, piece, length FROM row_spans WHERE contains(file, ?) AND doc_id = ?::UUID ORDER BY part, row, piece"
        result["rows"] = _dicts(ask(sql, [rows, doc_id]))
    trained = [row["row"] for row in result["rows"] if row["part"] == "train"]
    if trained and (steps := of.of.get(("pretrain", "steps"))):
        sql = "SELECT DISTINCT step FROM steps WHERE contains(file, ?) AND list_contains(?, row) ORDER BY 1"
        result["steps"] = [step for (step,) in ask(sql, [steps, trained])[1]]
    return result


def _dicts(table: database.Table) -> list[dict[str, Any]]:
    return [dict(zip(table[0], row, strict=True)) for row in table[1]]
