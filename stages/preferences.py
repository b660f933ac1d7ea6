"""Gathers the preference pairs, cleared of benchmark items, split into train and validation.

Guarantee: neither answer of a pair, with its prompt, holds a benchmark item; the split goes by hash of the chosen answer's
words, alike in conversations and preferences: with the same validation_frac no held-out pair's answer is trained on there.
Cost: one pass over the files, about 10 MB/s.
Source: prompt/chosen/rejected as in TRL and hh-rlhf; n-grams of 13 words, Brown et al. 2020, appendix C.
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
    from stages.text.items.dialogue import Pair
    from stages.text.match.ngrams import Index

TABLE = SideTable(
    "preferences", "preferences", "a preference pair",
    {
        "doc_id": Column("uuid", "the preference pair"),
        "source": Column("string", "the file or documentation it is from"),
        "prompt": Column("string", "the messages before the answer, as JSON"),
        "chosen": Column("string", "the better answer"),
        "rejected": Column("string", "the other one"),
        "split": Column("string", "train or validation"),
    },
)  # fmt: skip
DECISIONS = decisions_with({"item": Column("string", "the held-out benchmark item in it; null where there is none")})


class DocstringPairs(StageConfig):
    """Pairs from the documentation that benchmarks.docstrings reads: the right answer against another one of near length."""

    what: int = Field(1000, ge=0)
    """Pairs for "What does X do?" at most, chosen by hash."""
    complete: int = Field(2000, ge=0)
    """Pairs for "Complete: <first half of a sentence>" at most, chosen by hash."""


class Preferences(StageConfig):
    """Preference files by path, and pairs from documentation."""

    files: ExternalFiles = ()
    """JSONL files (plain or .gz): {"prompt", "chosen", "rejected"} per line, texts or messages, optionally "source"."""
    docstrings: DocstringPairs | None = None
    """Pairs from the documentation that benchmarks.docstrings names; null makes none."""
    validation_frac: float = Field(0.1, gt=0, lt=0.5)
    """Share of pairs held out from training, chosen by hash of the chosen answer; preference accuracy is measured on them.
    Set conversations.validation_frac to the same."""
    max_bad_records: int = Field(0, ge=0)
    """Broken lines that may be left out."""


@dataclass(frozen=True)
class Preference:
    """A pair before it is cleared. answer: what its split is drawn by."""

    doc_id: UUID
    source: str
    pair: Pair
    answer: str


def run(config: Preferences, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes preferences.parquet and decisions/00000.parquet."""
    from stages.core.tables.jsonl import counting, decision_books
    from stages.core.tables.parquet import schema, write_rows
    from stages.text.basics.hash_sampling import is_drawn
    from stages.text.items.dialogue import contents, forged_token, split_key
    from stages.text.match.ngrams import find, load_index

    if not ctx.files("files") and config.docstrings is None:
        raise StageError(
            "There are no preference pairs: neither files nor docstrings are given.",
            where="preferences.files",
            do="Name preference files, for example --set 'preferences.files=[pairs/*.jsonl]'.",
        )
    index = load_index(inputs["benchmarks"].path / "index")
    ctx, bad = counting(ctx)
    kept: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    sizes: dict[str, int] = {"": 0}
    for entry in _pairs(config, inputs["benchmarks"].path, ctx, index):
        pair = entry.pair
        prompt = contents(pair.prompt)
        reason = "special token" if forged_token([prompt, pair.chosen, pair.rejected]) else ""
        found = [] if reason else find(index, f"{prompt}\n{pair.chosen}") or find(index, f"{prompt}\n{pair.rejected}")
        reason = reason or ("held-out" if found else "")
        sizes[reason] = sizes.get(reason, 0) + len(prompt) + len(pair.chosen) + len(pair.rejected)
        item = f"{found[0].task}/{found[0].item_id}" if found else None
        decisions.append({"doc_id": entry.doc_id, "verdict": "dropped" if reason else "kept", "reason": reason or None, "item": item})
        if not reason:
            split = "validation" if is_drawn(ctx.seed, "chat split", split_key(entry.answer), config.validation_frac) else "train"
            row = {"doc_id": entry.doc_id, "source": entry.source, "prompt": json.dumps(pair.prompt, ensure_ascii=False)}
            kept.append(row | {"chosen": pair.chosen, "rejected": pair.rejected, "split": split})
    write_rows(out / "preferences.parquet", schema(**TABLE.types), kept)
    write_rows(out / "decisions" / "00000.parquet", schema(**DECISIONS.types), decisions)
    books = decision_books("pairs", decisions, sizes, len(bad))
    validation = sum(row["split"] == "validation" for row in kept)
    if not kept or validation in (0, len(kept)):
        raise StageError(
            f"{len(kept)} pairs are left, {validation} of them for validation; both parts need some.",
            where=f"{ctx.node}: dropped {dict(books.dropped)}",
            do="Give more pairs, or another preferences.validation_frac.",
        )
    summary = {"train": len(kept) - validation, "validation": validation, "held_out_dropped": books.dropped.get("held-out", 0)}
    return Outcome(rows=len(kept), books=books, summary=summary)


def _pairs(config: Preferences, benchmarks: Path, ctx: Context, index: Index) -> Iterator[Preference]:
    from stages.core.tables.jsonl import read_records
    from stages.text.items.dialogue import BadDialogueError, read_pair

    for record in read_records(ctx.files("files"), ctx):
        try:
            pair = read_pair(record.value)
        except BadDialogueError as error:
            ctx.drop(str(error), record.where, record.text())
            continue
        yield Preference(record.doc_id, record.source, pair, pair.chosen)
    if config.docstrings:
        yield from _from_docstrings(config, config.docstrings, benchmarks / "answers.parquet", ctx, index)


def _from_docstrings(config: Preferences, docs: DocstringPairs, path: Path, ctx: Context, index: Index) -> Iterator[Preference]:
    """The right answer against a wrong one of near length from the same split, never from a benchmark item.

    Benchmark items themselves come out too, without a wrong answer: whoever reads on drops and counts them.
    """
    from stages.core.tables.jsonl import no_answers
    from stages.core.tables.parquet import read_rows
    from stages.text.basics.hash_sampling import draw, is_drawn
    from stages.text.items.chat import complete_prompt, what_prompt
    from stages.text.items.dialogue import Pair, split_key
    from stages.text.items.held_out import answer_of, halves, says_what, wrong_answers
    from stages.text.match.ngrams import find

    if not path.is_file():
        raise no_answers(ctx.node)
    found = [(answer_of(row), row["version"]) for row in read_rows(path)]
    what = [entry for entry in found if says_what(entry[0])]
    for kind, pool, limit in (("what", what, docs.what), ("complete", found, docs.complete)):
        chosen = sorted(pool, key=lambda e: (draw(ctx.seed, f"{kind} preferences", e[0].key), e[0].key))[:limit]
        held_out = [bool(find(index, a.text)) for a, _ in chosen]
        later = [is_drawn(ctx.seed, "chat split", split_key(a.text), config.validation_frac) for a, _ in chosen]
        for group in ((True, True), (True, False), (False, True), (False, False)):
            part = [entry for entry, *of in zip(chosen, held_out, later, strict=True) if tuple(of) == group]
            texts = [a.text if kind == "what" else halves(a.text)[1] for a, _ in part]
            wrong = wrong_answers(texts, [a.key for a, _ in part], 1, ctx.seed)
            for (answer, version), text, others in zip(part, texts, wrong, strict=True):
                if not others and not group[0]:
                    continue
                name = f"{answer.of.package}=={version}:{answer.of.name}:{kind} pair:{answer.ordinal}"
                question = what_prompt(answer.of.name) if kind == "what" else complete_prompt(halves(answer.text)[0])
                pair = Pair([{"role": "user", "content": question}], text, "" if group[0] else texts[others[0]])
                yield Preference(uuid5(NAMESPACE_OID, name), f"docs:{answer.of.package}", pair, answer.text)


STAGE = Stage(
    name="preferences",
    config=Preferences,
    run=run,
    inputs={"benchmarks": "benchmarks"},
    output="preferences",
    tables=(TABLE, DECISIONS),
    does="preference pairs, cleared of held-out items",
    versions=("first version", "the index of the benchmarks; words as under NFKC_Casefold"),
    distributions=("numpy", "numba", "pyarrow"),
)
