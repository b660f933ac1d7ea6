"""Where a text comes from when it is in conversations and preference pairs. Counts are compared with a scan, steps with `loam trace --doc`."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stages import text_index
from stages.conversations import TABLE as CHATS
from stages.core.contract.errors import RecipeError
from stages.core.index import database
from stages.core.store import manifest
from stages.preferences import TABLE as PAIRS
from stages.queries.tracing import trace, trace_start, trace_text
from stages.queries.tracing.span_examples import SpanExample
from stages.queries.tracing.trace_lines import span_lines
from stages.queries.tracing.trace_text import SpanDocument, TextSpan
from stages.text.match.example_texts import TextKind
from stages.text.match.verbatim import Occurrence
from tests.conftest import answered, loam, run_stage
from tests.queries.test_trace_tuning import decided
from tests.queries.test_trace_tuning import trained as trained_rows
from tests.queries.two_runs import DECISION, Table, doc, make_artifact, make_run

SPAN = "seven words that are in many texts"
HALVES = ("these four words end", "and five words begin now")
ROLES = ("user", "assistant", "system")
NODES = {TextKind.DOCUMENT: "", TextKind.CONVERSATION: "sft", TextKind.PREFERENCE_PAIR: "dpo"}
TALKS = {
    20: ["a question", f"the answer has {SPAN}"],
    21: [f"{SPAN} and again {SPAN}", "thanks"],
    22: ["held out", f"{SPAN}"],
    23: [f"too long a chat with {SPAN}", "no"],
    25: ["in no sequence", f"ünd {SPAN}"],
    26: ["not reached", "yes", f"{SPAN}"],
    27: [f"it says {HALVES[0]}", f"{HALVES[1]} it says"],
    28: ["held out and too long", SPAN],
}
COUPLES = {
    30: ["asked", f"better: {SPAN}", "worse"],
    31: ["asked", "better", f"worse, with {SPAN}, or {SPAN}"],
    32: [f"asked with {SPAN}", "of the role assistant", "more", "better", "worse"],
    33: ["not scored", f"{SPAN}", "worse"],
    20: ["the same line of the same file as chat 20", "better", SPAN],
}
"""The texts of each pair: its prompt, the chosen and the rejected answer."""
HELD_OUT = (22, 28, 32)
TEXTS = [f"page with {SPAN}", "page without it", " ".join(HALVES[::-1])]


@dataclass(frozen=True)
class Made:
    """A home, the random texts of each kind, and the artifacts of documents, conversations, pairs and of the index."""

    home: Path
    texts: dict[TextKind, list[str]]
    clean: str
    chats: str
    pairs: str
    index: Path


def chat_rows(talks: dict[int, list[str]]) -> Table:
    rows = [{"doc_id": doc(n), "source": "chat.jsonl", "split": "validation" if n in HELD_OUT else "train",
             "messages": messages(texts)} for n, texts in talks.items()]  # fmt: skip
    return CHATS.types, rows


def pair_rows(couples: dict[int, list[str]]) -> Table:
    rows = [{"doc_id": doc(n), "source": "pair.jsonl", "split": "validation" if n in HELD_OUT else "train",
             "prompt": messages(texts[:-2]), "chosen": texts[-2], "rejected": texts[-1]} for n, texts in couples.items()]  # fmt: skip
    return PAIRS.types, rows


def messages(texts: Sequence[str]) -> str:
    return json.dumps([{"role": ROLES[n % 3], "content": text} for n, text in enumerate(texts)], ensure_ascii=False)


def random_texts() -> dict[TextKind, list[str]]:
    """Returns texts of few words for each kind, so that spans occur often and in several kinds."""
    draw = random.Random(5)
    return {kind: [" ".join(draw.choices(["ab", "c", "dé", "漢x"], k=draw.randrange(1, 20))) for _ in range(60)] for kind in TextKind}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Returns a home with an index of all, and its trainings. Of the conversations, sft trains 20, 21 and 27; of the pairs, dpo 30 and 20."""
    home, texts = tmp_path_factory.mktemp("examples") / "home", random_texts()
    pages = [*TEXTS, *texts[TextKind.DOCUMENT]]
    talks = TALKS | {100 + n: texts[TextKind.CONVERSATION][n * 3 : n * 3 + 3] for n in range(20)}
    couples = COUPLES | {200 + n: texts[TextKind.PREFERENCE_PAIR][n * 3 : n * 3 + 3] for n in range(20)}
    shape = {"doc_id": "uuid", "source": "string", "url": "string", "text": "string"}
    rows = [{"doc_id": doc(1000 + n), "source": "web", "url": f"http://x/{n}", "text": text} for n, text in enumerate(pages)]
    judged = [{"doc_id": row["doc_id"], "url": row["url"], "verdict": "kept", "reason": None} for row in rows]
    clean = make_artifact(
        home, "decontaminate", 1, {}, {"documents/00000.parquet": (shape, rows), "decisions/00000.parquet": (DECISION, judged)}
    )
    chats = make_artifact(home, "conversations", 1, {}, {"conversations.parquet": chat_rows(talks)} | decided(dict.fromkeys(talks)))
    pairs = make_artifact(home, "preferences", 1, {}, {"preferences.parquet": pair_rows(couples)} | decided(dict.fromkeys(couples)))
    index = indexed(home, documents=clean, conversations=chats, preferences=pairs)
    spans = dict.fromkeys(("start", "length", "bytes"), "int64") | {"doc_id": "uuid", "shard": "int32"}
    tokens = make_artifact(home, "encode", 1, {"documents": clean}, {"spans/00000.parquet": (spans, [])})
    base = make_artifact(home, "pretrain", 1, {"tokens": tokens}, {})
    own = decided({**dict.fromkeys(TALKS), 23: "too_long", 28: "too_long"}) | trained(
        [[20, 21], [21, 27], [26]], [22], [(1, 0), (3, 1), (2, 1)]
    )
    sft = make_artifact(home, "sft", 1, {"checkpoint": base, "conversations": chats}, own)
    tuned = trained([[30], [31], [20]], [32], [(5, 0), (6, 2), (4, 2)])
    dpo = make_artifact(home, "dpo", 1, {"checkpoint": sft, "preferences": pairs}, tuned)
    make_run(home, 1, [clean, chats, pairs, tokens, base, sft, dpo])
    database.update(home)
    return Made(home, texts, clean, chats, pairs, index)


def trained(train: Sequence[Sequence[int]], held_out: Sequence[int], trained_at: Sequence[tuple[int, int]]) -> dict[str, Table]:
    """Returns the side tables of a training. train: the records of each sequence; trained_at: steps with the sequences that they trained."""
    (spans, (columns, rows)), *_ = trained_rows(train, held_out, []).items()
    placed = columns | {"shard": "int32", "start": "int64"}, [{**row, "shard": 0, "start": 0} for row in rows]
    return {spans: placed, "steps/00000.parquet": steps(trained_at)}


def steps(trained_at: Sequence[tuple[int, int]]) -> Table:
    rows = [{"step": step, "position": n, "sequence": sequence} for n, (step, sequence) in enumerate(trained_at)]
    return dict.fromkeys(("step", "position", "sequence"), "int64"), rows


def indexed(home: Path, **inputs: str) -> Path:
    """Builds an index. inputs: role -> artifact."""
    read = {role: manifest.read_artifact(home / "artifacts" / name) for role, name in inputs.items()}
    return run_stage(text_index.STAGE, {"piece_mib": 1}, read, home).path


def asked(home: Path, text: str, checkpoint: str = "", min_words: int = 4, documents: int = 9) -> list[TextSpan]:
    return trace_text.trace_text(home, trace_start.start(home, checkpoint=checkpoint, tuned=True), text, min_words, documents)


def named(span: TextSpan, kind: TextKind) -> dict[int, SpanDocument]:
    return {int(one.doc_id.replace("-", ""), 16): one for one in span.documents if one.kind == kind}


def test_every_kind_names_what_holds_the_span(made: Made) -> None:
    """Catches: one kind that fills the list of another, a pair taken for the chat of the same doc_id, the role of another message."""
    (span,) = asked(made.home, SPAN)
    assert span.counts == {"document": 1, "conversation": 8, "preference_pair": 6} and span.count == 15
    chats, pairs = named(span, TextKind.CONVERSATION), named(span, TextKind.PREFERENCE_PAIR)
    assert {number: one.role for number, one in chats.items()} == {
        20: "assistant", 21: "user", 22: "assistant", 23: "user", 25: "assistant", 26: "system", 28: "assistant"
    }  # fmt: skip
    assert {number: one.role for number, one in pairs.items()} == {30: "chosen", 31: "rejected", 32: "user", 33: "chosen", 20: "rejected"}
    assert {one.source for one in chats.values()} == {"chat.jsonl"} and {one.source for one in pairs.values()} == {"pair.jsonl"}
    (page,) = named(span, TextKind.DOCUMENT).values()
    assert (page.url, page.source, page.role) == ("http://x/0", None, None) and {one.url for one in (*chats.values(), *pairs.values())} == {
        None
    }
    few = asked(made.home, SPAN, documents=2)[0]
    assert [len(named(few, kind)) for kind in TextKind] == [1, 2, 2] and few.counts == span.counts


def test_the_role_is_that_of_the_text_with_the_span_at_the_place() -> None:
    """Catches: a text of equal size, one that has the span at the same byte, characters taken for bytes."""
    texts = [("system", "übe"), ("user", "ün b"), ("assistant", "ün bc"), ("user", "xxün b")]
    example = SpanExample("chat", False, texts, False, frozenset(), (), ())
    span = b"n b"
    for number, role in ((1, "user"), (2, "assistant"), (3, "user")):
        data = texts[number][1].encode()
        assert example.role(Occurrence(doc(1), data.index(span), len(data), 0), span) == role
    assert example.role(Occurrence(doc(1), 2, 99, 0), span) is None and example.role(Occurrence(doc(1), 0, 4, 0), span) is None


def test_steps_and_outcomes_are_those_of_trace_doc(made: Made) -> None:
    """Catches: steps of another training, of validation, of a sequence that was not reached; a held-out chat that counts as trained."""
    (span,) = asked(made.home, SPAN)
    of = trace_start.start(made.home, checkpoint="dpo-1")
    for one in span.documents:
        told = trace.trace_doc(made.home, of, one.doc_id)
        seen = {tuned.node: tuned for tuned in told.tuned}.get(NODES[one.kind])
        assert one.tuned == (seen.steps if seen else ()) and one.steps == told.steps == ()
        assert one.sequences == (tuple(sorted({part.sequence for part in seen.sequences if part.part == "train"})) if seen else ())
        assert one.outcome == told.outcome or one.kind == TextKind.DOCUMENT
    chats = {number: (str(one.outcome), one.tuned) for number, one in named(span, TextKind.CONVERSATION).items()}
    assert chats == {
        20: ("trained", (1,)), 21: ("trained", (1, 2, 3)), 22: ("held_out", ()), 23: ("dropped", ()), 25: ("not_in_mixture", ()),
        26: ("not_reached", ()), 28: ("dropped", ()),
    }  # fmt: skip
    pairs = {number: (str(one.outcome), one.tuned) for number, one in named(span, TextKind.PREFERENCE_PAIR).items()}
    assert pairs == {
        30: ("trained", (5,)), 31: ("not_reached", ()), 32: ("held_out", ()), 33: ("not_in_mixture", ()), 20: ("trained", (4, 6)),
    }  # fmt: skip


def test_without_a_training_the_split_says_what_is_held_out(made: Made) -> None:
    (span,) = asked(made.home, SPAN, checkpoint="conversations-1")
    assert span.counts == {"conversation": 8} and {str(one.outcome) for one in span.documents if one.doc_id == str(doc(22))} == {"held_out"}
    assert {str(one.outcome) for one in span.documents if one.doc_id == str(doc(20))} == {"kept"}


def test_a_span_never_crosses_messages(made: Made) -> None:
    """Catches: messages that are joined. The page has both parts the other way round."""
    found = asked(made.home, " ".join(HALVES))
    assert [span.text for span in found] == list(HALVES)
    assert [span.counts for span in found] == [{"document": 1, "conversation": 1, "preference_pair": 0}] * 2
    assert named(found[0], TextKind.CONVERSATION).keys() == {27}


@pytest.mark.parametrize("seed", range(10))
def test_counts_are_those_of_a_scan_of_every_text(made: Made, seed: int) -> None:
    draw = random.Random(seed)
    query = " ".join(draw.choices(["ab", "c", "dé", "漢x"], k=12))
    found = asked(made.home, query, min_words=1)
    assert found
    for span in found:
        border = rf"(?<![^ ])(?={re.escape(span.text)}(?![^ ]))"
        if not span.text.startswith("x") and not span.text.endswith("漢"):  # a span can begin or end between the two
            assert span.counts == {kind: sum(len(re.findall(border, text)) for text in texts) for kind, texts in made.texts.items()}


def test_a_start_without_conversations_does_not_count_them(made: Made) -> None:
    """Catches: a pretrained model whose text is said to come from chats that it never saw."""
    (span,) = asked(made.home, SPAN, checkpoint="pretrain-1")
    assert span.counts == {"document": 1} and len(span.documents) == 1
    (span,) = asked(made.home, SPAN, checkpoint="sft-1")
    assert span.counts == {"document": 1, "conversation": 8} and named(span, TextKind.CONVERSATION)[20].tuned == (1,)
    (span,) = asked(made.home, SPAN, checkpoint=f"text_index/{made.index.name}")
    assert span.counts == {"document": 1, "conversation": 8, "preference_pair": 6}


def test_the_answer_is_about_the_last_model_of_the_newest_run(made: Made, tmp_path: Path) -> None:
    """Catches: the pretrained model, which has no chats, for a text of the last one; an older run that got further."""
    assert trace_start.start(made.home, tuned=True).alias == "dpo-1" and trace_start.start(made.home, "tiny-1", tuned=True).alias == "dpo-1"
    assert trace_start.start(made.home).alias == "pretrain-1"
    home = tmp_path / "home"
    shutil.copytree(made.home, home)
    of = trace_start.start(home, checkpoint="pretrain-1")
    make_run(home, 2, [made.clean, of.artifact])
    database.update(home)
    assert trace_start.start(home, tuned=True).alias == "pretrain-1" and trace_start.start(home, "tiny-1", tuned=True).alias == "dpo-1"


def test_the_command_names_conversations_and_pairs(made: Made) -> None:
    answer = answered(loam("trace", "--text", SPAN, "--json", home=made.home).stdout, "trace")
    (told,) = answer["spans"]
    assert answer["from"]["alias"] == "dpo-1" and told["counts"] == {"document": 1, "conversation": 8, "preference_pair": 6}
    assert {"document", "conversation", "preference_pair"} == {one["kind"] for one in told["documents"]}
    lines = span_lines(asked(made.home, SPAN), 4)
    assert lines[1] == "  7 words, 1 time in the documents, 8 times in the conversations, 6 times in the preference pairs"
    assert lines[2] == f"  {doc(1000)}  http://x/0" and lines[3] == "    kept; no mixture is known"
    at = lines.index(f"  {doc(21)}  conversation from chat.jsonl, user")
    assert lines[at + 1] == "    sft steps 1, 2, 3"
    at = lines.index(f"  {doc(31)}  preference pair from pair.jsonl, rejected")
    assert lines[at + 1] == "    in a training sequence, but no step trained it"
    at = lines.index(f"  {doc(30)}  preference pair from pair.jsonl, chosen")
    assert lines[at + 1] == "    dpo steps 5"
    assert {"    held out for validation", "    left out of the training", "    in no training sequence"} <= set(lines)
    (kept,) = asked(made.home, SPAN, checkpoint="conversations-1", documents=1)
    assert span_lines([kept], 4)[-1] == "    kept; no training on it is known"


def test_conversations_without_documents_are_searched(tmp_path: Path) -> None:
    """A model is imported and fine-tuned: there are no documents."""
    home = tmp_path / "home"
    chats = make_artifact(home, "conversations", 1, {}, {"conversations.parquet": chat_rows(TALKS)})
    sft = make_artifact(home, "sft", 1, {"conversations": chats}, trained([[20]], [], [(1, 0)]))
    make_run(home, 1, [chats, sft])
    indexed(home, conversations=chats)
    database.update(home)
    (span,) = asked(home, SPAN)
    assert span.counts == {"conversation": 8} and named(span, TextKind.CONVERSATION)[20].tuned == (1,)
    shutil.rmtree(home / "artifacts" / chats)
    database.update(home)
    lost = named(asked(home, SPAN)[0], TextKind.CONVERSATION)[20]
    assert (lost.source, lost.role, lost.tuned) == (None, None, (1,))
    (line,) = {line for line in span_lines(asked(home, SPAN, documents=1), 4) if "conversation from" in line}
    assert line.endswith("conversation from a source that is not in this home, unknown role")


def test_an_index_without_the_conversations_of_the_start_is_refused(made: Made, tmp_path: Path) -> None:
    """Catches: counts that leave the conversations out in silence, or those of other conversations."""
    home = tmp_path / "home"
    shutil.copytree(made.home, home)
    other = make_artifact(home, "conversations", 2, {}, {"conversations.parquet": chat_rows({20: ["a", SPAN]})})
    shutil.rmtree(home / "artifacts" / "text_index")
    index = indexed(home, documents=made.clean, conversations=other)
    database.update(home)
    with pytest.raises(
        RecipeError, match=f"No index holds all texts that sft-1 was made from; the newest lacks those of {made.chats}"
    ) as caught:
        asked(home, SPAN, checkpoint="sft-1")
    assert caught.value.where == str(index)
    assert "Run `loam stage text_index RECIPE` with the recipe of tiny-1, or start from a checkpoint before it" in str(caught.value)
    assert asked(home, SPAN, checkpoint="pretrain-1")[0].counts == {"document": 1}
    later = indexed(home, documents=made.clean, conversations=made.chats)
    database.update(home)
    assert asked(home, SPAN, checkpoint="sft-1")[0].counts == {"document": 1, "conversation": 8} and later != index


def test_an_index_of_equal_conversations_is_enough(made: Made, tmp_path: Path) -> None:
    """Other settings can give the same conversations. A new index then has the old key, so a refusal could not be cured."""
    home = tmp_path / "home"
    shutil.copytree(made.home, home)
    folder = home / "artifacts" / made.chats
    tables = manifest.read_artifact(folder).manifest["files"]
    equal = make_artifact(home, "conversations", 2, {}, {})
    for table in tables:
        (home / "artifacts" / equal / table["path"]).parent.mkdir(exist_ok=True)
        shutil.copy(folder / table["path"], home / "artifacts" / equal / table["path"])
    described = json.loads((home / "artifacts" / equal / "manifest.json").read_text())
    digest = manifest.content_digest(tables)
    (home / "artifacts" / equal / "manifest.json").write_text(json.dumps(described | {"files": tables, "digest": digest}))
    shutil.rmtree(home / "artifacts" / "text_index")
    indexed(home, documents=made.clean, conversations=equal)
    database.update(home)
    assert asked(home, SPAN, checkpoint="sft-1")[0].counts == {"document": 1, "conversation": 8}
