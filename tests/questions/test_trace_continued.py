"""A step or document of a continued training is followed to the run that trained it, through chains and other mixtures."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from stages.questions import lineage
from stages.questions.tracing import trace, trace_start
from stages.questions.tracing.traced import SequenceSpan
from stages.record.contract.errors import RecipeError
from stages.record.index import database
from tests.questions.two_runs import FOREIGN, MIRROR, SITE, SPAN, URLS, doc, make_artifact, make_run, make_two_runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the home of two_runs with two continued runs.

    pretrain-1 trained the pages 0, 1 and 4 in its steps 1 to 3. pretrain-4 continues it after step 2, and pretrain-5 continues that one after
    step 4 on the foreign crawl.
    """
    home = tmp_path_factory.mktemp("continued") / "home"
    make_two_runs(home)
    names = dict(database.query(home, "SELECT alias, artifact_id FROM artifact")[1])
    four = continued(home, 4, names["encode-1"], [1, 0], 3, names["pretrain-1"])
    continued(home, 5, names["encode-2"], [7, 8], 5, four)
    database.update(home)
    return home


def continued(home: Path, number: int, tokens: str, pages: Sequence[int], first: int, trunk: str) -> str:
    """Returns a checkpoint that trained the pages from step `first` on, one per step, on a mixture of its own."""
    spans = [
        {"part": "train", "sequence": i, "segment": 0, "doc_id": doc(page), "source": "web", "length": 10} for i, page in enumerate(pages)
    ]
    mix = make_artifact(home, "mix", number, {"tokens": tokens}, {"sequence_spans/train.parquet": (SPAN, spans)})
    steps = [{"step": first + i, "position": i, "sequence": i} for i in range(len(pages))]
    tables = {"steps/00000.parquet": (dict.fromkeys(("step", "position", "sequence"), "int64"), steps)}
    found = make_artifact(home, "pretrain", number, {"mixture": mix, "tokens": tokens}, tables, continues=trunk)
    make_run(home, number, [mix, found])
    return found


def pages(home: Path, checkpoint: str, step: int) -> list[str | None]:
    return [row["url"] for row in trace.trace_step(home, trace_start.start(home, checkpoint=checkpoint), step)]


def test_a_step_before_the_continuation_is_that_of_the_trunk(home: Path) -> None:
    """The trunk's own step 3 is not part of the continued training."""
    found = [pages(home, "pretrain-5", step) for step in range(1, 7)]
    assert found == [[URLS[0]], [URLS[1]], [URLS[1]], [URLS[0]], [URLS[7]], [URLS[8]]]
    assert [pages(home, "pretrain-4", step) for step in (1, 3)] == [[URLS[0]], [URLS[1]]]
    assert pages(home, "pretrain-1", 3) == [URLS[4]]
    for step in (0, 7):
        with pytest.raises(RecipeError, match=f"There is no step {step}") as caught:
            pages(home, "pretrain-5", step)
        assert "The steps are 1 to" in str(caught.value)


def test_a_document_has_the_steps_of_the_whole_chain(home: Path) -> None:
    of = trace_start.start(home, checkpoint="pretrain-5")
    assert [one.alias for one in of.chain] == ["pretrain-5", "pretrain-4", "pretrain-1"]
    steps = {page: trace.trace_doc(home, of, str(doc(page))).steps for page in (0, 1, 4, 7, 8)}
    assert steps == {0: (1, 4), 1: (2, 3), 4: (), 7: (5,), 8: (6,)}
    (found,) = trace.trace_url(home, of, f"{SITE}/0")
    assert found.sequences == (SequenceSpan("train", 1, 0, 10),), "in the newest mixture that holds it"
    assert [verdict.node for verdict in found.verdicts] == ["extract", "boilerplate", "filter", "dedup", "decontaminate"]
    assert trace.trace_doc(home, of, str(doc(4))).sequences == (SequenceSpan("train", 2, 0, 10),)
    outcomes = {page: str(trace.trace_doc(home, of, str(doc(page))).outcome) for page in (0, 1, 4, 7)}
    assert outcomes == {0: "trained", 1: "trained", 4: "not_in_mixture", 7: "trained"}, "4 is in the mixture of the trunk alone"
    many = trace.trace_url(home, of, "http://%")
    assert many == [trace.trace_doc(home, of, found.doc_id) for found in many], "one pass over the tables, or each alone"
    assert len(many) == 8 and trace.trace_url(home, of, f"{FOREIGN}/7")[0].steps == (5,)
    only = trace_start.start(home, checkpoint="pretrain-4")
    with pytest.raises(RecipeError, match=f"No document {doc(7)} is recorded in what pretrain-4 was made from"):
        trace.trace_doc(home, only, str(doc(7)))
    assert trace.trace_url(home, only, f"{MIRROR}/4")[0].steps == ()


def test_lineage_follows_the_continuation(home: Path) -> None:
    above = [(row["distance"], row["alias"]) for row in lineage.up(home, "pretrain-5") if row["node"] == "pretrain"]
    assert above == [(1, "pretrain-4"), (2, "pretrain-1")]
    assert "pretrain-5" in [row["alias"] for row in lineage.down(home, "pretrain-1")]
    upstream = database.query(home, "SELECT count(*) FROM upstream('pretrain-5') WHERE node = 'pretrain'")[1]
    assert upstream == [(3,)]


def test_a_trunk_that_is_gone_is_named(home: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(home, copied)
    gone = trace_start.start(copied, checkpoint="pretrain-1").artifact
    shutil.rmtree(copied / "artifacts" / gone)
    database.update(copied)
    with pytest.raises(RecipeError, match=f"What pretrain-4 was made from is not all in this home: {gone}"):
        pages(copied, "pretrain-5", 1)
    assert pages(copied, "pretrain-5", 3) == [URLS[1]]
