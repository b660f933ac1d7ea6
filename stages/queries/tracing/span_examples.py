"""Finds what became of conversations and preference pairs in which a span of a text occurs.

The whole conversation or pair counts: its steps are those that trained any of its tokens, as `loam trace --doc` names them. Which tokens of
it the span has is not looked up.
Guarantee: read-only.
Cost: four queries of the index for all conversations together, and four for all pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stages.core.index.database import QueryFunction
from stages.queries.tracing.document_rows import decided_by, in_files, steps_by_sequence
from stages.queries.tracing.indexed_texts import TABLES
from stages.queries.tracing.trace_start import Start
from stages.queries.tracing.traced import RecordOutcome
from stages.text.match.example_texts import TEXT_COLUMNS, TextKind, example_texts

if TYPE_CHECKING:
    from uuid import UUID

    from stages.text.match.verbatim import Occurrence

TRAINED_BY: Mapping[TextKind, str] = {TextKind.CONVERSATION: "sft", TextKind.PREFERENCE_PAIR: "dpo"}
"""Kind -> the node that trains it."""


@dataclass
class SpanExample:
    """A conversation or a pair.

    Attributes:
        source: the file or documentation that it is from; None if its table is not in this home.
        held_out: whether it is of the split for validation.
        texts: role and text of its messages, or of the answers of a pair.
        dropped: whether training left it out.
        parts: the parts of the training data that it is in.
        sequences: the training sequences that it is in.
        steps: the steps that trained them.
    """

    source: str | None = None
    held_out: bool = False
    texts: Sequence[tuple[str, str]] = ()
    dropped: bool = False
    parts: set[str] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)

    def outcome(self, known: bool) -> RecordOutcome:
        """Returns the outcome. known: whether the sequences of a training on examples of this kind are known."""
        if self.dropped:
            return RecordOutcome.DROPPED
        if self.steps:
            return RecordOutcome.TRAINED
        if self.held_out:
            return RecordOutcome.HELD_OUT
        if self.parts:
            return RecordOutcome.NOT_REACHED
        return RecordOutcome.NOT_IN_MIXTURE if known else RecordOutcome.KEPT

    def role(self, place: Occurrence, span: bytes) -> str | None:
        """Returns the role of the text that has a span at a place. Of several such texts, which all have it there, the first counts."""
        for role, text in self.texts:
            data = text.encode()
            if len(data) == place.size and data.startswith(span, place.start):
                return role
        return None


def span_examples(ask: QueryFunction, of: Start, kind: TextKind, doc_ids: Iterable[UUID]) -> dict[str, SpanExample]:
    """Finds what became of conversations or pairs.

    Args:
        ask: runs a query on one connection to the index.
        of: the start of the answer.
        kind: which of the two.
        doc_ids: the conversations or pairs.

    Returns:
        doc_id -> the example.
    """
    found = {str(doc_id): SpanExample() for doc_id in doc_ids}
    if not found:
        return found
    table, node, wanted = TABLES[kind], TRAINED_BY[kind], list(found)
    if file := of.of.get((table, table)):
        columns = TEXT_COLUMNS[kind]
        sql = f"SELECT doc_id::VARCHAR, source, split, {', '.join(columns)} FROM {table} WHERE contains(file, ?) AND {_NAMED}"
        for doc_id, source, split, *texts in ask(sql, [file, wanted])[1]:
            one = found[doc_id]
            one.source, one.held_out = source, split == "validation"
            one.texts = example_texts(kind, dict(zip(columns, texts, strict=True)))
    if file := of.sequences(node):
        sql = f"SELECT doc_id::VARCHAR, part, sequence FROM sequence_spans WHERE contains(file, ?) AND {_NAMED}"
        for doc_id, part, sequence in ask(sql, [file, wanted])[1]:
            found[doc_id].parts.add(part)
            if part == "train":
                found[doc_id].sequences.add(sequence)
    steps = steps_by_sequence(ask, of, node, {sequence for one in found.values() for sequence in one.sequences})
    for one in found.values():
        one.steps.update(step for sequence in one.sequences for step in steps.get(sequence, ()))
    if judged := decided_by(of, (node,)):
        sql = f"SELECT doc_id::VARCHAR FROM decisions WHERE {in_files(judged)} AND verdict = 'dropped' AND {_NAMED}"
        for (doc_id,) in ask(sql, [*judged, wanted])[1]:
            found[doc_id].dropped = True
    return found


_NAMED = "doc_id IN (SELECT unnest(?::UUID[]))"
