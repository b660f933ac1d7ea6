"""Traces a document through the pipeline, and a training step back to its documents.

The chain is URL -> captures -> verdicts -> token spans -> sequences -> steps. A verdict that dropped or changed a document has its evidence
(stages/queries/tracing/drop_evidence.py). The sequences of a step come from the `steps` side table of pretraining, which is written from the same
stateless permutation that the trainer uses.
Guarantee: read-only. An answer starts from one artifact and contains only what that artifact was made from. Other artifacts of
other runs are left out. The default start is the newest pretrained checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast
from uuid import UUID

from stages.core.contract.errors import RecipeError
from stages.core.index import database, lookup
from stages.queries.tracing.decision import Decision
from stages.queries.tracing.drop_evidence import evidence
from stages.queries.tracing.traced import BatchRow, Origin, SequenceSpan, TokenSpan, TracedDocument, TracedVerdict

PIPELINE = ("extract", "boilerplate", "filter", "dedup", "decontaminate")
STARTS = (
    "pretrain",
    "mix",
    "encode",
    "decontaminate",
    "dedup",
    "filter",
    "boilerplate",
    "extract",
)  # an answer starts at the first that exists


@dataclass(frozen=True)
class Start:
    """The artifact that an answer starts from, and what it was made from.

    Attributes:
        artifact: its id, "<node>/<folder>".
        alias: its alias, for example "pretrain-2".
        node: its node.
        run: alias of a run that has the artifact; empty if none is recorded.
        of: (node, kind of side table) -> "/<node>/<folder>/" as in the paths of its files, so that `contains(file, …)` opens only these.
        gone: ids of artifacts that it was made from and that are not in this home.
    """

    artifact: str
    alias: str
    node: str
    run: str
    of: Mapping[tuple[str, str], str]
    gone: tuple[str, ...]

    def named(self) -> Origin:
        """Returns the fields that an answer shows."""
        return {"artifact": self.artifact, "alias": self.alias, "run": self.run}

    @property
    def judged(self) -> list[str]:
        """The path parts of the artifacts with decisions, in pipeline order. Stages before an imported one have none."""
        return [self.of[node, "decisions"] for node in PIPELINE if (node, "decisions") in self.of]


def start(home: Path, run: str = "", checkpoint: str = "", *, trained: bool = False) -> Start:
    """Finds the start of an answer.

    Without `run` and `checkpoint`, this is the newest pretrained checkpoint, else the newest artifact of the last node in the pipeline
    that has one. Artifacts of later nodes than decontaminate that were imported without their inputs are skipped, unless `trained`.

    Args:
        home: the home folder.
        run: a run, whose pretrained checkpoint or last artifact is the start.
        checkpoint: an artifact, by any name; it has precedence over `run`.
        trained: whether only a checkpoint can answer, as for a training step.

    Returns:
        The start, with all that it was made from.

    Raises:
        RecipeError: no document is recorded, or the run or artifact does not exist or has no documents in this home.
    """
    if checkpoint:
        found = str(lookup.latest_artifact(home, checkpoint)["artifact_id"])
    elif run:
        found = _of_run(home, lookup.run_id_of(home, run), run)
    else:
        found = next((name for node in STARTS if (name := _newest(home, node, made=node not in PIPELINE and not trained))), "")
        if not found:
            raise RecipeError("No document is recorded here yet.", where=str(home), do="Run a recipe up to extract first.")
    return database.with_connection(home, lambda query: _followed(query, found, run))


def trace_url(home: Path, of: Start, url: str) -> list[TracedDocument]:
    """Traces all captures of a URL.

    Args:
        home: the home folder.
        of: the start of the answer.
        url: the URL as crawled; a URL that ends in "%" is a prefix. At most 1,000 captures are returned.

    Returns:
        The captures, sorted by URL and doc_id.

    Raises:
        RecipeError: no capture is recorded.
    """
    seen: list[str] = []
    condition = "starts_with(url, ?)" if url.endswith("%") else "url = ?"
    if of.judged:
        sql = f"SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(of.judged)} AND {condition} AND doc_id IS NOT NULL ORDER BY url, doc_id LIMIT 1000"
        seen = [str(doc_id) for doc_id, _ in database.query(home, sql, [*of.judged, url.removesuffix("%")])[1]]
    if not seen:
        raise RecipeError(
            f"No capture of {url} is recorded in what {of.alias} was made from.",
            where=_where(home, of),
            do="Give the URL as crawled; end it with % to match a prefix; use --run or --checkpoint to start from another one.",
        )
    return database.with_connection(home, lambda query: [_document(query, home, of, doc_id) for doc_id in seen])


def trace_doc(home: Path, of: Start, doc_id: str) -> TracedDocument:
    """Traces one document. A document that is not recorded is a RecipeError.

    Args:
        home: the home folder.
        of: the start of the answer.
        doc_id: the document, a UUID as text.

    Returns:
        The document.

    Raises:
        RecipeError: `doc_id` is not a UUID.
    """
    try:
        wanted = str(UUID(doc_id))
    except ValueError:
        raise RecipeError(
            f"{doc_id!r} is not a doc_id.", do="A doc_id is a UUID: copy one from `loam trace --url` or the decisions view."
        ) from None
    return database.with_connection(home, lambda query: _document(query, home, of, wanted))


def trace_step(home: Path, of: Start, step: int) -> list[BatchRow]:
    """Lists the documents in one global batch of pretraining.

    Args:
        home: the home folder.
        of: the start of the answer.
        step: the training step, from 1.

    Returns:
        The documents, in batch order.

    Raises:
        RecipeError: nothing was pretrained, there is no such step, or a needed artifact is not in this home.
    """
    trained = _trained(of)
    if not trained:
        do = "Name a checkpoint with --checkpoint, or run the recipe up to pretrain."
        raise RecipeError(f"{of.alias} was not made from a pretrained checkpoint, so there are no steps.", where=str(home), do=do)
    pretrain = of.of.get(("pretrain", "steps"))
    first: int | None = None
    last = 0
    if pretrain is not None:
        ((first, last),) = database.query(home, "SELECT min(step), max(step) FROM steps WHERE contains(file, ?)", [pretrain])[1]
    if first is None:
        raise RecipeError("Pretraining took no step here: its checkpoint was imported.", where=trained, do="Look where it was trained.")
    if ("mix", "sequence_spans") not in of.of or not of.judged:
        what = f"What {of.alias} was made from is not all in this home: {', '.join(of.gone) or 'no mixture or documents'}."
        raise RecipeError(what, where=str(home), do="Look where it was trained, or run its recipe again.")
    if not first <= step <= last:
        raise RecipeError(f"There is no step {step}.", where=trained, do=f"The steps are {first} to {last}.")
    found = database.records(
        home,
        "SELECT s.position, s.sequence, r.segment, r.doc_id::VARCHAR AS doc_id, d.url, r.source, r.length AS tokens FROM steps s "
        "JOIN sequence_spans r ON r.sequence = s.sequence AND r.part = 'train' AND contains(r.file, ?) "
        f"LEFT JOIN (SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(of.judged)}) d ON d.doc_id = r.doc_id "
        "WHERE contains(s.file, ?) AND s.step = ? ORDER BY s.position, r.segment",
        [of.of["mix", "sequence_spans"], *of.judged, pretrain, step],
    )
    return cast(list[BatchRow], found)


class _Known(NamedTuple):
    """An artifact in the index: its alias, its node, its number, and the run that built it."""

    alias: str
    node: str
    number: int
    run_id: str


def _newest(home: Path, node: str, made: bool) -> str:
    """Returns the artifact of a node from the newest run; empty if there is none. made: whether to skip artifacts without recorded inputs."""
    sql = (
        "SELECT a.artifact_id FROM artifact a LEFT JOIN node_run n USING (artifact_id) LEFT JOIN run ON run.run_id = n.run_id "
        "WHERE a.node = $1 AND (NOT $2 OR EXISTS (FROM edge WHERE child = a.artifact_id AND input)) "
        "ORDER BY coalesce(run.seq, 0) DESC, try_cast(regexp_extract(a.alias, '[0-9]+$') AS BIGINT) DESC LIMIT 1"
    )
    found = database.query(home, sql, [node, made])[1]
    return str(found[0][0]) if found else ""


def _of_run(home: Path, run_id: str, name: str) -> str:
    """Finds the artifact of a run for the first of STARTS that the run has.

    Args:
        home: the home folder.
        run_id: the id of the run.
        name: the name of the run in the message.

    Returns:
        The id of the artifact.

    Raises:
        RecipeError: the run has none of them in this home.
    """
    sql = "SELECT n.node, artifact_id FROM node_run n JOIN artifact USING (artifact_id) WHERE n.run_id = ? ORDER BY ordinal"
    there: dict[str, str] = dict(database.query(home, sql, [run_id])[1])
    for node in STARTS:
        if node in there:
            return there[node]
    raise RecipeError(f"Run {name!r} has no documents in this home.", where=str(home), do="`loam runs` lists the runs.")


def _followed(query: database.QueryFunction, artifact: str, run: str) -> Start:
    """Returns the start and all that it was made from. Of each node, the nearest artifact counts; corpora that dedup compared with do not.

    Args:
        query: runs a query on one connection to the index.
        artifact: the id of the artifact to start from.
        run: the requested run, by any name; empty for none.
    """
    distance: dict[str, int] = {}
    reached = {artifact}
    while reached:
        distance |= dict.fromkeys(reached, len(distance))  # only the order of distances counts
        sql = "SELECT parent FROM edge WHERE input AND child IN (SELECT unnest($1::VARCHAR[]))"
        reached = {parent for (parent,) in query(sql, [list(reached)])[1]} - distance.keys()
    sql = "SELECT artifact_id, alias, node, number, run_id FROM artifact WHERE artifact_id IN (SELECT unnest($1::VARCHAR[]))"
    known = {row[0]: _Known(*row[1:]) for row in query(sql, [list(distance)])[1]}
    nearest: dict[str, str] = {}
    for name in sorted(known, key=lambda name: (distance[name], -known[name].number)):
        nearest.setdefault(known[name].node, name)
    tables = query(
        "SELECT DISTINCT node, kind, artifact_id FROM side_table WHERE artifact_id IN (SELECT unnest($1::VARCHAR[]))", [list(known)]
    )[1]
    of = {(node, kind): f"/{name}/" for node, kind, name in tables if nearest.get(node) == name}
    # The requested run, else the run that built the artifact, else the newest run that has it.
    runs = query(
        "SELECT alias FROM run LEFT JOIN node_run n ON n.run_id = run.run_id AND n.artifact_id = $1 "
        "WHERE n.artifact_id IS NOT NULL OR run.run_id = $2 "
        "ORDER BY run.alias = $3 OR run.run_id = $3 DESC, run.run_id = $2 DESC, seq DESC LIMIT 1",
        [artifact, known[artifact].run_id, run],
    )[1]
    gone = tuple(sorted(set(distance) - known.keys()))
    return Start(artifact, known[artifact].alias, known[artifact].node, runs[0][0] if runs else "", of, gone)


def _trained(of: Start) -> str:
    """Returns the id of the pretraining artifact; empty if there is none."""
    if of.node == "pretrain":
        return of.artifact
    return next((path.strip("/") for (node, _), path in of.of.items() if node == "pretrain"), "")


def _where(home: Path, of: Start) -> str:
    return f"{of.artifact} of {home}" + (f", without {', '.join(of.gone)}, which are not in this home" if of.gone else "")


def _any(paths: list[str]) -> str:
    """Returns an SQL condition on `file` with one parameter per path."""
    return f"({' OR '.join(['contains(file, ?)'] * len(paths))})"


def _document(query: database.QueryFunction, home: Path, of: Start, doc_id: str) -> TracedDocument:
    decisions: list[Decision] = []
    if of.judged:
        sql = f"SELECT * FROM decisions WHERE {_any(of.judged)} AND doc_id = ?::UUID ORDER BY list_position(?, node)"
        names, found = query(sql, [*of.judged, doc_id, list(PIPELINE)])
        decisions = [Decision.of_row(names, row) for row in found]
    if not decisions:
        raise RecipeError(
            f"No document {doc_id} is recorded in what {of.alias} was made from.",
            where=_where(home, of),
            do="Take a doc_id from `loam trace --url` or the decisions view; use --run or --checkpoint to start from another one.",
        )
    spans: tuple[TokenSpan, ...] = ()
    if file := of.of.get(("encode", "spans")):
        sql = "SELECT shard, start, length FROM token_spans WHERE contains(file, ?) AND doc_id = ?::UUID"
        spans = tuple(TokenSpan(*row) for row in query(sql, [file, doc_id])[1])
    sequences: tuple[SequenceSpan, ...] = ()
    if file := of.of.get(("mix", "sequence_spans")):
        sql = "SELECT part, sequence, segment, length FROM sequence_spans WHERE contains(file, ?) AND doc_id = ?::UUID ORDER BY part, sequence, segment"
        sequences = tuple(SequenceSpan(*row) for row in query(sql, [file, doc_id])[1])
    steps: tuple[int, ...] = ()
    trained = [span.sequence for span in sequences if span.part == "train"]
    if trained and (file := of.of.get(("pretrain", "steps"))):
        sql = "SELECT DISTINCT step FROM steps WHERE contains(file, ?) AND list_contains(?, sequence) ORDER BY 1"
        steps = tuple(step for (step,) in query(sql, [file, trained])[1])
    verdicts = tuple(_verdict(query, decision) for decision in decisions)
    return TracedDocument(doc_id, decisions[0].url, verdicts, spans, sequences, steps)


def _verdict(query: database.QueryFunction, decision: Decision) -> TracedVerdict:
    why = evidence(query, decision)
    return TracedVerdict(
        decision.node, decision.artifact, decision.verdict, decision.reason, why.measured, why.copy, why.removed, why.matches
    )  # fmt: skip
