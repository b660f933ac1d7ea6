"""Which artifact an answer of trace starts from, and what it reaches from there: on homes that are made artifact by artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from stages.questions.tracing import trace, trace_start
from stages.questions.tracing.traced import TokenSpan
from stages.record.contract.errors import RecipeError
from stages.record.index import database
from tests.questions.two_runs import DECISION, SITE, SPAN, URLS, Table, doc, make_artifact, make_run

STEPS = dict.fromkeys(("step", "position", "sequence"), "int64")
TOKENS = {"doc_id": "uuid", "shard": "int32", "start": "int64", "length": "int64"}


def kept(*pages: int) -> dict[str, Table]:
    return {"decisions/00000.parquet": (DECISION, [{"doc_id": doc(n), "url": URLS[n], "verdict": "kept", "reason": None} for n in pages])}


def encoded(*spans: tuple[int, int]) -> dict[str, Table]:
    return {"spans/00000.parquet": (TOKENS, [{"doc_id": doc(page), "shard": 0, "start": start, "length": 10} for page, start in spans])}


def packed(*sequences: Sequence[int]) -> dict[str, Table]:
    """Returns the side table of mix. sequences: the pages of each sequence."""
    rows = [
        {"part": "train", "sequence": number, "segment": segment, "doc_id": doc(page), "source": "web", "length": 10}
        for number, pages in enumerate(sequences) for segment, page in enumerate(pages)
    ]  # fmt: skip
    return {"sequence_spans/train.parquet": (SPAN, rows)}


def test_without_any_run_the_newest_number_counts_and_no_run_is_named(tmp_path: Path) -> None:
    for number in (9, 10):
        make_artifact(tmp_path, "extract", number, {}, kept(0))
    database.update(tmp_path)
    start = trace_start.start(tmp_path)
    assert (start.alias, start.run) == ("extract-10", "")


def test_what_the_newest_run_used_counts_before_a_newer_number(tmp_path: Path) -> None:
    first, second = (make_artifact(tmp_path, "extract", number, {}, kept(0)) for number in (1, 2))
    make_run(tmp_path, 1, [second])
    make_run(tmp_path, 2, [first])
    database.update(tmp_path)
    assert trace_start.start(tmp_path).alias == "extract-1"


def test_of_two_artifacts_of_a_node_the_nearer_counts_though_another_is_newer(tmp_path: Path) -> None:
    """dedup-7 was read by a filter that encode read; encode read dedup-3 itself."""
    far, near = (make_artifact(tmp_path, "dedup", number, {}, kept(number)) for number in (7, 3))
    filtered = make_artifact(tmp_path, "filter", 1, {"documents": far}, kept(7))
    tokens = make_artifact(tmp_path, "encode", 1, {"documents": near, "more": filtered}, {})
    make_artifact(tmp_path, "mix", 1, {"tokens": tokens}, {})
    database.update(tmp_path)
    assert trace_start.start(tmp_path, checkpoint="mix-1").of == {
        ("dedup", "decisions"): f"/{near}/",
        ("filter", "decisions"): f"/{filtered}/",
    }


def test_what_is_gone_is_named_in_order_and_in_the_message(tmp_path: Path) -> None:
    gone = [f"encode/{number:012}" for number in range(7)]
    mix = make_artifact(tmp_path, "mix", 1, {f"role{n}": name for n, name in enumerate(reversed(gone))}, {})
    database.update(tmp_path)
    start = trace_start.start(tmp_path)
    assert start.gone == tuple(gone)
    with pytest.raises(RecipeError, match="No capture") as caught:
        trace.trace_url(tmp_path, start, f"{SITE}/0")
    assert caught.value.where == f"{mix} of {tmp_path}, without {', '.join(gone)}, which are not in this home"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a home with a tuned checkpoint. Step 1 of its pretraining saw two sequences with page 0, and page 8, which no decision names."""
    home = tmp_path_factory.mktemp("tuned") / "home"
    documents = make_artifact(home, "dedup", 1, {}, kept(0))
    tokens = make_artifact(home, "encode", 1, {"documents": documents}, encoded((0, 30), (8, 40)))
    make_artifact(home, "encode", 2, {"documents": documents}, encoded((0, 50)))
    mix = make_artifact(home, "mix", 1, {"tokens": tokens}, packed([0], [0, 8]))
    steps = [{"step": 1, "position": position, "sequence": position} for position in (0, 1)]
    pretrained = make_artifact(home, "pretrain", 1, {"mixture": mix}, {"steps/00000.parquet": (STEPS, steps)})
    make_artifact(home, "sft", 1, {"model": pretrained}, {})
    database.update(home)
    return home


def test_a_page_that_no_decision_names_is_in_its_batch_without_a_url(tuned: Path) -> None:
    rows = trace.trace_step(tuned, trace_start.start(tuned, checkpoint="pretrain-1"), 1)
    assert [(row["position"], row["segment"], row["doc_id"], row["url"]) for row in rows] == [
        (0, 0, str(doc(0)), f"{SITE}/0"), (1, 0, str(doc(0)), f"{SITE}/0"), (1, 1, str(doc(8)), None)
    ]  # fmt: skip


def test_a_page_in_two_sequences_of_one_step_was_seen_at_one_step_and_has_the_tokens_of_its_own_encode(tuned: Path) -> None:
    found = trace.trace_doc(tuned, trace_start.start(tuned, checkpoint="pretrain-1"), str(doc(0)))
    assert found.steps == (1,) and found.tokens == (TokenSpan(shard=0, start=30, length=10),)
    assert [(span.sequence, span.segment) for span in found.sequences] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("name", ["pretrain-1", "sft-1"])
def test_steps_are_those_of_the_pretraining_behind_a_checkpoint(tuned: Path, name: str) -> None:
    of = trace_start.start(tuned, checkpoint=name)
    assert len(trace.trace_step(tuned, of, 1)) == 3
    with pytest.raises(RecipeError, match="There is no step 2") as caught:
        trace.trace_step(tuned, of, 2)
    assert caught.value.where == trace_start.start(tuned, checkpoint="pretrain-1").artifact
