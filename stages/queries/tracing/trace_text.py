"""Finds where a text comes from: its longest spans that occur verbatim in the documents, and the training steps that saw them.

The chain is span -> documents (the index of node text_index) -> tokens -> segments of sequences -> steps. Any program may call `trace_text`;
`loam trace --text` prints its answer.
Guarantee: read-only. Counts are exact over all documents of decontaminate that the start was made from, held out or not. A step is named
if it trained a segment with at least one token of the span. Steps of a continued checkpoint are left out where it trained the document with a
text of another size.
Cost: milliseconds for the search (stages/text/match/verbatim.py); four queries of the index for all documents together. A text that
repeats itself, against documents that repeat the same, takes time with the square of its length, so MAX_BYTES bounds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stages.core.contract.errors import RecipeError
from stages.core.index import database
from stages.queries.tracing.trace import urls_in
from stages.queries.tracing.trace_start import Start, first_step
from stages.queries.tracing.traced import RecordOutcome

if TYPE_CHECKING:
    import numpy as np

    from stages.text.match.suffix_array import TextPiece
    from stages.text.match.verbatim import Occurrence, VerbatimSpan

MAX_BYTES = 1 << 16
"""Largest text, in UTF-8. One word again and again is the worst: 100 KB of it took 74 s on a busy machine (2026-11-23),
and the time grows with the square of the length."""
INDEX_VERSION = 2
"""The version of stage text_index that this search reads. Version 1 has too few places in scripts without spaces, so counts would be too low."""
REPLAYS = "sft"
"""The node that trains pretraining sequences again."""
DOCUMENTS = 3
"""Documents per span by default."""
MIN_WORDS = 6
"""Shortest span by default, in words; shorter ones are mostly common phrases. A guess. In Chinese, Japanese and Thai, among others, a character
counts as a word, so there it is a few words only."""


@dataclass(frozen=True)
class SpanDocument:
    """A document in which a span occurs.

    Attributes:
        doc_id: the document.
        url: its URL; None if none is recorded.
        outcome: what became of the span there: as for a record, but of the tokens of one occurrence.
        sequences: the training sequences with tokens of the span, of one occurrence.
        steps: the pretraining steps that trained them, in order.
        tuned: the steps of sft that trained the span again, in order.
    """

    doc_id: str
    url: str | None
    outcome: RecordOutcome
    sequences: tuple[int, ...]
    steps: tuple[int, ...]
    tuned: tuple[int, ...]


@dataclass(frozen=True)
class TextSpan:
    """A span of the text that occurs verbatim in documents.

    Attributes:
        text: the span.
        start: its first character in the text.
        end: the character after it.
        words: number of its words.
        count: number of its occurrences in all documents.
        documents: some documents with it.
    """

    text: str
    start: int
    end: int
    words: int
    count: int
    documents: tuple[SpanDocument, ...]


class _Trained(NamedTuple):
    """What became of an occurrence: the parts of the mixture that it is in, its training sequences, their steps, and those of sft."""

    parts: set[str]
    sequences: set[int]
    steps: set[int]
    tuned: set[int]

    def outcome(self, known: bool) -> RecordOutcome:
        """Returns the outcome. known: whether a mixture is known."""
        if self.steps or self.tuned:
            return RecordOutcome.TRAINED
        if "validation" in self.parts:
            return RecordOutcome.HELD_OUT
        if self.parts:
            return RecordOutcome.NOT_REACHED
        return RecordOutcome.NOT_IN_MIXTURE if known else RecordOutcome.KEPT


class _Tokens(NamedTuple):
    """The tokens of a document: their token file, the first of them, how many they are, and the bytes of the text."""

    shard: int
    start: int
    length: int
    size: int


def trace_text(home: Path, of: Start, text: str, min_words: int, documents: int = DOCUMENTS) -> list[TextSpan]:
    """Finds the longest spans of a text in the documents that a start was made from.

    Args:
        home: the home folder.
        of: the start of the answer.
        text: the text.
        min_words: shortest span, in words.
        documents: most documents per span.

    Returns:
        The spans that no longer one contains, in the order of the text. They can overlap.

    Raises:
        RecipeError: the text is too long, or the documents have no index, or one that is damaged or of an older version.
    """
    query = text.encode("utf-8", "surrogatepass")
    if len(query) > MAX_BYTES:
        raise RecipeError(
            f"The text has {len(query):,} bytes; at most {MAX_BYTES:,} are searched.", where="--text", do="Give a shorter part of it."
        )
    from stages.text.match.verbatim import longest_spans

    found = longest_spans(_pieces(index_folder(home, of)), query, min_words, documents)
    return database.with_connection(home, lambda ask: _answered(ask, home, of, query, found))


def index_folder(home: Path, of: Start) -> Path:
    """Returns the folder of the newest index of the documents that a start was made from.

    Args:
        home: the home folder.
        of: the start of the answer.

    Raises:
        RecipeError: there are no documents, or they have no index, or only one that an older version of the stage built.
    """
    indexed = database.with_connection(home, lambda ask: _documents(ask, of))
    sql = (
        "SELECT child, version FROM edge JOIN artifact ON artifact_id = child WHERE parent = ? AND kind = 'text_index' "
        "ORDER BY version DESC, number DESC LIMIT 1"
    )
    if not (found := database.query(home, sql, [indexed])[1]):
        raise RecipeError(
            f"The documents that {of.alias} was made from have no index of their text.",
            where=f"{indexed or of.artifact} of {home}",
            do="Write `text_index: {piece_mib: 256}` into the recipe and run `loam stage text_index RECIPE`.",
        )
    folder = home / "artifacts" / str(found[0][0])
    if found[0][1] < INDEX_VERSION:
        what = f"The index of the text of the documents that {of.alias} was made from was built by an older version."
        raise RecipeError(what, where=str(folder), do="Run `loam stage text_index RECIPE`.")
    return folder


def _pieces(index: Path) -> list[TextPiece]:
    """Returns the pieces of an index.

    Raises:
        RecipeError: a file is missing or has another size.
    """
    from stages.text.match.suffix_array import open_piece

    problem = ""
    try:
        words = json.loads((index / "text_index.json").read_text(encoding="utf-8"))["words"]
        pieces = [open_piece(folder) for folder in sorted((index / "pieces").iterdir())]
        if (there := sum(len(piece.order) for piece in pieces)) != words:
            problem = f"it has {there:,} of {words:,} words"
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        raise RecipeError(
            f"The index of the text is damaged: {problem}.", where=str(index), do="Run `loam stage text_index RECIPE --force`."
        )
    return pieces


def _documents(ask: database.QueryFunction, of: Start) -> str:
    """Returns the artifact of the documents that encode reads; empty if there is none. An imported one has no decisions to find it by."""
    if of.node == "decontaminate":
        return of.artifact
    encode = of.of.get(("encode", "spans"), "").strip("/")
    found = ask("SELECT parent FROM edge WHERE child = ? AND role = 'documents'", [encode])[1]
    return str(found[0][0]) if found else ""


def _answered(ask: database.QueryFunction, home: Path, of: Start, query: bytes, found: Sequence[VerbatimSpan]) -> list[TextSpan]:
    """Returns the spans with what became of their documents."""
    places = [(one, span.end - span.start) for span in found for one in span.documents]
    trained = iter(_trained(ask, home, of, places))
    urls = urls_in(ask, of.judged, sorted({str(one.doc_id) for one, _ in places}))
    answer = []
    for span in found:
        documents = []
        for one in span.documents:
            became, doc_id = next(trained), str(one.doc_id)
            outcome = became.outcome(bool(of.sequences("pretrain")))
            numbers = [tuple(sorted(found)) for found in (became.sequences, became.steps, became.tuned)]
            documents.append(SpanDocument(doc_id, urls.get(doc_id), outcome, *numbers))
        text = query[span.start : span.end].decode()
        start = len(query[: span.start].decode("utf-8", "surrogatepass"))
        answer.append(TextSpan(text, start, start + len(text), span.words, span.count, tuple(documents)))
    return answer


def _trained(ask: database.QueryFunction, home: Path, of: Start, places: Sequence[tuple[Occurrence, int]]) -> list[_Trained]:
    """Returns what became of each occurrence. places: occurrences, and the bytes of their spans.

    Where pretraining continued a checkpoint, the sequences are those of the newest mixture, and the steps those of the whole chain. The
    places are bytes of the newest run's texts. If an earlier run trained another text of a document, known by its size, its steps are left out.
    """
    found = [_Trained(set(), set(), set(), set()) for _ in places]
    before: int | None = None  # the first step of the runs that were already looked at
    for number, one in enumerate(of.chain):
        parts = _segments(ask, home, one, places)
        steps = _steps(ask, one, {sequence for own in parts for part, sequence in own if part == "train"}, before)
        for trained, own in zip(found, parts, strict=True):
            sequences = {sequence for part, sequence in own if part == "train"}
            trained.steps.update(step for sequence in sequences for step in steps.get(sequence, ()))
            if not number:
                trained.sequences.update(sequences)
                trained.parts.update(part for part, _ in own)
        before = first_step(ask, one, before)
    replayed = _segments(ask, home, of, places, REPLAYS)
    steps = _steps(ask, of, {sequence for own in replayed for _, sequence in own}, None, REPLAYS)
    for trained, own in zip(found, replayed, strict=True):
        trained.tuned.update(step for _, sequence in own for step in steps.get(sequence, ()))
    return found


def _segments(
    ask: database.QueryFunction, home: Path, of: Start, places: Sequence[tuple[Occurrence, int]], node: str = "pretrain"
) -> list[set[tuple[str, int]]]:
    """Returns for each occurrence part and sequence of the segments with tokens of its span. node: which training's sequences."""
    wanted = sorted({place.doc_id.hex for place, _ in places})
    found: list[set[tuple[str, int]]] = [set() for _ in places]
    if not wanted or not (file := of.sequences(node)):
        return found
    from stages.lm.data.replayed_sequences import OWN_FILES

    own_files = OWN_FILES if node == REPLAYS else 0
    tokens = _tokens(ask, of, wanted)
    sql = "SELECT doc_id, part, sequence, shard, start, length FROM sequence_spans WHERE contains(file, ?) AND doc_id IN (SELECT unnest(?::UUID[]))"
    segments: dict[str, list[tuple[str, int, int, int, int]]] = {}
    for doc_id, *segment in ask(sql, [file, wanted])[1]:
        segments.setdefault(doc_id.hex, []).append((*segment,))
    for own, (place, length) in zip(found, places, strict=True):
        if (row := tokens.get(place.doc_id.hex)) and row.size == place.size:
            first, end = _token_range(_folder(home, of), _tokenizer(ask, home, of), row, place.start, place.start + length)
            for part, sequence, shard, start, size in segments.get(place.doc_id.hex, ()):
                if shard == row.shard + own_files and start < end and start + size > first:
                    own.add((part, sequence))
    return found


def _folder(home: Path, of: Start) -> Path:
    return home / "artifacts" / of.of["encode", "spans"].strip("/")


def _tokenizer(ask: database.QueryFunction, home: Path, of: Start) -> Path:
    """Returns the tokenizer.json that encode read."""
    sql = "SELECT parent FROM edge WHERE child = ? AND role = 'tokenizer'"
    return home / "artifacts" / str(ask(sql, [of.of["encode", "spans"].strip("/")])[1][0][0]) / "tokenizer.json"


def _tokens(ask: database.QueryFunction, of: Start, documents: Sequence[str]) -> Mapping[str, _Tokens]:
    """Returns doc_id in hexadecimal -> its tokens."""
    if not documents or not (file := of.of.get(("encode", "spans"))):
        return {}
    sql = (
        "SELECT replace(doc_id::VARCHAR, '-', ''), shard, start, length, bytes FROM token_spans "
        "WHERE contains(file, ?) AND doc_id IN (SELECT unnest(?::UUID[]))"
    )
    return {str(row[0]): _Tokens(*row[1:]) for row in ask(sql, [file, sorted(set(documents))])[1]}


def _token_range(encode: Path, tokenizer: Path, row: _Tokens, first: int, end: int) -> tuple[int, int]:
    """Returns the positions in the token file (from, up to) of the tokens with a byte of the document from `first` up to `end`."""
    import numpy as np

    described = json.loads((encode / "tokens.json").read_text(encoding="utf-8"))
    kind = np.dtype("<u2" if described["dtype"] == "uint16" else "<u4")
    ids = np.fromfile(encode / "tokens" / f"{row.shard:05d}.bin", kind, row.length, offset=row.start * kind.itemsize)
    ends = np.cumsum(_sizes(tokenizer)[ids])
    ends -= ends[-1] - row.size  # a tokenizer that puts a blank before the text
    return row.start + int(np.searchsorted(ends, first, "right")), row.start + int(np.searchsorted(ends, end, "left")) + 1


@cache
def _sizes(tokenizer: Path) -> np.ndarray:
    """Returns the bytes of each token: int64 [V]. A published tokenizer never changes."""
    from stages.text.tokenizer.bpe import load_plain
    from stages.text.tokenizer.token_bytes import token_bytes

    return token_bytes(load_plain(tokenizer))


def _steps(ask: database.QueryFunction, of: Start, sequences: set[int], before: int | None, node: str = "pretrain") -> dict[int, list[int]]:
    """Returns training sequence -> the steps of a training that trained it. before: only steps below this one; None: all."""
    found: dict[int, list[int]] = {}
    if sequences and (file := of.of.get((node, "steps"))):
        sql = (
            "SELECT DISTINCT sequence, step FROM steps WHERE contains(file, ?) AND sequence IN (SELECT unnest(?::BIGINT[])) "
            "AND step < coalesce(?, step + 1)"
        )
        for sequence, step in ask(sql, [file, sorted(sequences), before])[1]:
            found.setdefault(sequence, []).append(step)
    return found
