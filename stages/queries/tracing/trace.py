"""Traces a document through the pipeline, and a training step back to its documents.

The chain is URL -> captures -> verdicts -> token spans -> sequences -> steps. A verdict that dropped or changed a document has its evidence
(stages/queries/tracing/drop_evidence.py). The sequences of a step come from the `steps` side table of pretraining, which is written from the same
stateless permutation that the trainer uses. Where pretraining continued a checkpoint, the steps before are those of that checkpoint's run.
Guarantee: read-only. An answer starts from one artifact and contains only what that artifact was made from. Other artifacts of
other runs are left out. The default start is the newest pretrained checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID

from stages.core.contract.errors import RecipeError
from stages.core.index import database
from stages.queries.tracing.decision import Decision
from stages.queries.tracing.drop_evidence import evidence
from stages.queries.tracing.trace_start import PIPELINE, Start, start
from stages.queries.tracing.traced import BatchRow, SequenceSpan, TokenSpan, TracedDocument, TracedVerdict


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
    if judged := list(dict.fromkeys(path for one in of.chain for path in one.judged)):
        sql = f"SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(judged)} AND {condition} AND doc_id IS NOT NULL ORDER BY url, doc_id LIMIT 1000"
        seen = [str(doc_id) for doc_id, _ in database.query(home, sql, [*judged, url.removesuffix("%")])[1]]
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
    if first is not None and step < first and of.trunk:
        return trace_step(home, of.trunk, step)
    if first is None:
        raise RecipeError("Pretraining took no step here: its checkpoint was imported.", where=trained, do="Look where it was trained.")
    if ("mix", "sequence_spans") not in of.of or not of.judged or (0 < step < first and of.gone):
        what = f"What {of.alias} was made from is not all in this home: {', '.join(of.gone) or 'no mixture or documents'}."
        raise RecipeError(what, where=str(home), do="Look where it was trained, or run its recipe again.")
    if not first <= step <= last:
        raise RecipeError(f"There is no step {step}.", where=trained, do=f"The steps are {1 if of.trunk else first} to {last}.")
    found = database.records(
        home,
        "SELECT s.position, s.sequence, r.segment, r.doc_id::VARCHAR AS doc_id, d.url, r.source, r.length AS tokens FROM steps s "
        "JOIN sequence_spans r ON r.sequence = s.sequence AND r.part = 'train' AND contains(r.file, ?) "
        f"LEFT JOIN (SELECT DISTINCT doc_id, url FROM decisions WHERE {_any(of.judged)}) d ON d.doc_id = r.doc_id "
        "WHERE contains(s.file, ?) AND s.step = ? ORDER BY s.position, r.segment",
        [of.of["mix", "sequence_spans"], *of.judged, pretrain, step],
    )
    return cast(list[BatchRow], found)


def urls_of(home: Path, artifacts: Sequence[str], doc_ids: Sequence[str]) -> dict[str, str]:
    """Finds the URLs of documents.

    Args:
        home: the home folder.
        artifacts: ids of the artifacts that were made from the documents.
        doc_ids: the documents.

    Returns:
        doc_id -> URL, without those of which no URL is recorded.
    """
    judged = list(dict.fromkeys(path for one in artifacts for path in start(home, checkpoint=one).judged))
    if not judged or not doc_ids:
        return {}
    sql = f"SELECT DISTINCT doc_id::VARCHAR, url FROM decisions WHERE {_any(judged)} AND url IS NOT NULL AND list_contains(?, doc_id::VARCHAR)"
    return {str(doc_id): str(url) for doc_id, url in database.query(home, sql, [*judged, list(doc_ids)])[1]}


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
    """Returns a document. Where pretraining continued a checkpoint, its steps are those of the whole chain.

    Verdicts, tokens and sequences are those of the first in the chain that recorded the document.

    Raises:
        RecipeError: none of them recorded it.
    """
    found: list[TracedDocument] = []
    first: int | None = None  # of the steps of the runs that were already looked at
    for one in of.chain:
        document = _recorded(query, one, doc_id, first)
        found += [document] if document else []
        if file := one.of.get(("pretrain", "steps")):
            first = query("SELECT min(step) FROM steps WHERE contains(file, ?)", [file])[1][0][0]
    if not found:
        raise RecipeError(
            f"No document {doc_id} is recorded in what {of.alias} was made from.",
            where=_where(home, of),
            do="Take a doc_id from `loam trace --url` or the decisions view; use --run or --checkpoint to start from another one.",
        )
    newest = next((document for document in found if document.sequences), found[0])
    return replace(newest, steps=tuple(sorted({step for document in found for step in document.steps})))


def _recorded(query: database.QueryFunction, of: Start, doc_id: str, before: int | None) -> TracedDocument | None:
    """Returns what one start recorded of a document; None for nothing. before: only steps below this one count; None: all."""
    decisions: list[Decision] = []
    if of.judged:
        sql = f"SELECT * FROM decisions WHERE {_any(of.judged)} AND doc_id = ?::UUID ORDER BY list_position(?, node)"
        names, found = query(sql, [*of.judged, doc_id, list(PIPELINE)])
        decisions = [Decision.of_row(names, row) for row in found]
    if not decisions:
        return None
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
        sql = "SELECT DISTINCT step FROM steps WHERE contains(file, ?) AND list_contains(?, sequence) AND step < coalesce(?, step + 1) ORDER BY 1"
        steps = tuple(step for (step,) in query(sql, [file, trained, before])[1])
    verdicts = tuple(_verdict(query, decision) for decision in decisions)
    return TracedDocument(doc_id, decisions[0].url, verdicts, spans, sequences, steps)


def _verdict(query: database.QueryFunction, decision: Decision) -> TracedVerdict:
    why = evidence(query, decision)
    return TracedVerdict(
        decision.node, decision.artifact, decision.verdict, decision.reason, why.measured, why.copy, why.removed, why.matches
    )  # fmt: skip
