"""Gathers the conversations for supervised fine-tuning, cleared of benchmark items, split into train and validation.

Guarantee: no conversation holds a benchmark item (found by the same n-gram index that decontaminates documents); the split
goes by hash of the answer's words, alike in conversations and preferences: with the same validation_frac no held-out pair's
answer is trained on here.
Cost: one pass over the files, about 10 MB/s.
Source: the messages format of chat APIs; n-grams of 13 words, Brown et al. 2020, appendix C.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, UUID, uuid5

from pydantic import Field

from stages.core.contract.declaration import Artifact, Context, ExternalFiles, Outcome, Stage, StageConfig
from stages.core.contract.errors import StageError
from stages.core.contract.side_table import Column, SideTable
from stages.core.tables.documents import decisions_with

if TYPE_CHECKING:
    from stages.text.items.dialogue import Messages
    from stages.text.match.ngrams import Index

TABLE = SideTable(
    "conversations", "conversations", "a conversation",
    {
        "doc_id": Column("uuid", "the conversation"),
        "source": Column("string", "the file or documentation it is from"),
        "messages": Column("string", "the messages as JSON: a list of role and content"),
        "split": Column("string", "train or validation"),
    },
)  # fmt: skip
DECISIONS = decisions_with({"item": Column("string", "the held-out benchmark item in it; null where there is none")})


class DocstringChats(StageConfig):
    """Conversations made from the documentation that benchmarks.docstrings reads, but for the answers held out there."""

    what: int = Field(4000, ge=0)
    """Questions "What does X do?" at most, answered by the first sentences; chosen by hash."""
    complete: int = Field(8000, ge=0)
    """Questions "Complete: <first half of a sentence>" at most, answered by the second half; chosen by hash."""
    answer_sentences: int = Field(2, ge=1)
    """Sentences of an answer to "What does X do?" at most."""


class Conversations(StageConfig):
    """Chat files by path, and conversations from documentation."""

    files: ExternalFiles = ()
    """JSONL files (plain or .gz): {"messages": [{"role", "content"}, …]} per line, optionally "source"."""
    docstrings: DocstringChats | None = None
    """Conversations from the documentation that benchmarks.docstrings names; null makes none."""
    validation_frac: float = Field(0.1, gt=0, lt=0.5)
    """Share of conversations held out from training, chosen by hash of the answer; set preferences.validation_frac to the same."""
    max_bad_records: int = Field(0, ge=0)
    """Broken lines that may be left out."""


@dataclass(frozen=True)
class Chat:
    """A conversation before it is cleared. answer: what its split is drawn by."""

    doc_id: UUID
    source: str
    messages: Messages
    answer: str


def run(config: Conversations, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes conversations.parquet and decisions/00000.parquet."""
    from stages.core.tables.jsonl import counting, decision_books
    from stages.core.tables.parquet import schema, write_rows
    from stages.text.basics.hash_sampling import is_drawn
    from stages.text.items.dialogue import contents, forged_token, split_key
    from stages.text.match.ngrams import load_index

    if not ctx.files("files") and config.docstrings is None:
        raise StageError(
            "There are no conversations: neither files nor docstrings are given.",
            where="conversations.files",
            do="Name chat files, for example --set 'conversations.files=[chat/*.jsonl]'.",
        )
    index = load_index(inputs["benchmarks"].path / "index")
    ctx, bad = counting(ctx)
    kept: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    sizes: dict[str, int] = {"": 0}
    for chat in _chats(config, inputs["benchmarks"].path, ctx):
        text = contents(chat.messages)
        reason = "special token" if forged_token([m["content"] for m in chat.messages]) else ""
        found = "" if reason else _held_out(index, text)
        reason = reason or ("held-out" if found else "")
        sizes[reason] = sizes.get(reason, 0) + len(text)
        decisions.append(
            {"doc_id": chat.doc_id, "verdict": "dropped" if reason else "kept", "reason": reason or None, "item": found or None}
        )
        if not reason:
            split = "validation" if is_drawn(ctx.seed, "chat split", split_key(chat.answer), config.validation_frac) else "train"
            messages = json.dumps(chat.messages, ensure_ascii=False)
            kept.append({"doc_id": chat.doc_id, "source": chat.source, "messages": messages, "split": split})
    write_rows(out / "conversations.parquet", schema(**TABLE.types), kept)
    write_rows(out / "decisions" / "00000.parquet", schema(**DECISIONS.types), decisions)
    books = decision_books("conversations", decisions, sizes, len(bad))
    if not kept:
        raise StageError(
            "No conversation is left.",
            where=f"{ctx.node}: {dict(books.dropped)}",
            do="Give other chat files than the benchmarks themselves.",
        )
    validation = sum(row["split"] == "validation" for row in kept)
    summary = {"train": len(kept) - validation, "validation": validation, "held_out_dropped": books.dropped.get("held-out", 0)}
    return Outcome(rows=len(kept), books=books, summary=summary)


def _held_out(index: Index, text: str) -> str:
    """task/item of the first benchmark item in the text, or ""."""
    from stages.text.match.ngrams import find

    matches = find(index, text)
    return f"{matches[0].task}/{matches[0].item_id}" if matches else ""


def _chats(config: Conversations, benchmarks: Path, ctx: Context) -> Iterator[Chat]:
    from stages.core.tables.jsonl import read_records
    from stages.text.items.dialogue import BadDialogueError, read_messages

    for record in read_records(ctx.files("files"), ctx):
        try:
            messages = read_messages(record.value.get("messages"))
        except BadDialogueError as error:
            ctx.drop(str(error), record.where, record.text())
            continue
        yield Chat(record.doc_id, record.source, messages, next(m["content"] for m in messages if m["role"] == "assistant"))
    if config.docstrings:
        yield from _from_docstrings(config.docstrings, benchmarks / "answers.parquet", ctx)


def _from_docstrings(config: DocstringChats, path: Path, ctx: Context) -> Iterator[Chat]:
    """ "What does X do?" and "Complete: …" over all answers; those of benchmark items are dropped by whoever reads on."""
    from stages.core.tables.jsonl import no_answers
    from stages.core.tables.parquet import read_rows
    from stages.text.basics.hash_sampling import draw
    from stages.text.items.chat import complete_prompt, what_prompt
    from stages.text.items.held_out import answer_of, halves, says_what

    if not path.is_file():
        raise no_answers(ctx.node)
    found = [(answer_of(row), row["version"]) for row in read_rows(path)]
    what = [entry for entry in found if says_what(entry[0])]
    for kind, pool, limit in (("what", what, config.what), ("complete", found, config.complete)):
        for answer, version in sorted(pool, key=lambda e: (draw(ctx.seed, f"{kind} conversations", e[0].key), e[0].key))[:limit]:
            name = f"{answer.of.package}=={version}:{answer.of.name}:{kind}:{answer.ordinal}"
            if kind == "what":
                question, reply = what_prompt(answer.of.name), " ".join(answer.of.sentences[: config.answer_sentences])
            else:
                first, reply = halves(answer.text)
                question = complete_prompt(first)
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
            yield Chat(uuid5(NAMESPACE_OID, name), f"docs:{answer.of.package}", messages, answer.text)


STAGE = Stage(
    name="conversations",
    config=Conversations,
    run=run,
    inputs={"benchmarks": "benchmarks"},
    output="conversations",
    tables=(TABLE, DECISIONS),
    does="chat data, cleared of held-out items",
    versions=("first version", "the index of the benchmarks; words as under NFKC_Casefold"),
    distributions=("numpy", "numba", "pyarrow"),
)
