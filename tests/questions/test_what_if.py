"""Verdicts at other thresholds, from the stored signals, against a rerun; what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from stages.corpus.filter.stage import STAGE
from stages.questions import what_if as what_if_module
from stages.questions.what_if import what_if
from stages.record.contract.declaration import Artifact
from stages.record.contract.errors import RecipeError, StageError
from stages.record.index import database
from stages.record.tables.parquet import schema, write_rows
from tests.conftest import run_stage
from tests.made.rule_breakers import broken
from tests.made.variants import Data
from tests.questions.two_runs import doc
from tests.stages.made import documents

BASE: dict[str, JsonValue] = {"url": {"enabled": False}}


def filtered(home: Path, config: dict[str, JsonValue], texts: list[str]) -> Artifact:
    made = run_stage(STAGE, BASE | config, {"documents": documents(home / "made" / "documents", [texts])}, home)
    database.update(home)
    return made


@pytest.fixture(scope="module")
def texts(data: Data) -> list[str]:
    """Returns documents that stay, and of the made ones some that break each rule."""
    return data.texts(data.expected(made=120, real=None)) + data.expected(made=list(broken(0).values()), real=[])


@pytest.fixture(scope="module")
def home(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    filtered(folder, {}, texts)
    return folder


def name(home: Path) -> str:
    """Returns the artifact's name: no run is recorded here, so that "filter" alone means none."""
    return database.records(home, "SELECT artifact_id FROM artifact WHERE stage = 'filter'")[0]["artifact_id"]


CHANGES = {
    "filter.gopher_quality.min_doc_words=120": {"gopher_quality": {"min_doc_words": 120}},
    "filter.fineweb.line_punct_thr=0.99": {"fineweb": {"line_punct_thr": 0.99}},
    "filter.c4.min_num_sentences=12": {"c4": {"min_num_sentences": 12}},
    "filter.gopher_repetition.dup_n_grams={5: 0.01}": {"gopher_repetition": {"dup_n_grams": {5: 0.01}}},
    "filter.url.remove=['http://x/0/1%']": {"url": {"enabled": False, "remove": ["http://x/0/1%"]}},
}


@pytest.mark.parametrize("setting", list(CHANGES))
def test_the_answer_is_what_a_rerun_gives(home: Path, texts: list[str], tmp_path: Path, setting: str) -> None:
    rows = what_if(home, name(home), STAGE, [setting])
    again = filtered(tmp_path, CHANGES[setting], texts).manifest["record_counts"]
    then = {row["verdict"].removeprefix("dropped: "): row["then"] for row in rows if row["then"]}
    assert then == {"kept": again["kept"] + again["changed"], **again["dropped"]}
    assert sum(row["today"] for row in rows) == sum(row["then"] for row in rows) == len(texts)
    assert sum(row["change"] for row in rows) == 0 and any(row["new"] for row in rows)
    assert all(max(0, row["change"]) <= row["new"] <= row["then"] for row in rows)


def test_nothing_changed_changes_nothing(home: Path, data: Data) -> None:
    rows = what_if(home, name(home), STAGE, [])
    assert data.name == "real" or {row["verdict"] for row in rows} >= {f"dropped: {reason}" for reason in broken(0)}
    assert all(row["today"] == row["then"] and not row["new"] for row in rows) and rows[0]["verdict"] == "kept"


def test_rows_are_by_falling_number_and_have_the_characters_of_their_documents(home: Path) -> None:
    rows = what_if(home, name(home), STAGE, ["filter.gopher_quality.min_doc_words=120"])
    assert rows[0]["verdict"] == "kept" and len({row["then"] for row in rows[1:]}) > 1
    assert rows[1:] == sorted(rows[1:], key=lambda row: (-row["then"], row["verdict"]))
    verdict = "CASE verdict WHEN 'dropped' THEN 'dropped: ' || reason ELSE 'kept' END"
    sql = f"SELECT {verdict}, sum(chars) FROM decisions WHERE node = 'filter' GROUP BY 1"
    assert {row["verdict"]: row["chars_then"] for row in what_if(home, name(home), STAGE, [])} == dict(database.query(home, sql)[1])


def test_the_first_document_that_the_rules_do_not_give_is_the_one_that_is_named(tmp_path: Path) -> None:
    shape = schema(doc_id="uuid", verdict="string", reason="string", quality_score="float64", chars="int64")
    for number in (3, 0, 5, 1, 4, 2):
        row = {"doc_id": doc(number), "verdict": "dropped", "reason": "other", "quality_score": None, "chars": 1}
        write_rows(tmp_path / "decisions" / f"{number:05}.parquet", shape, [row])
    with pytest.raises(StageError, match=f"the recorded verdict of {doc(0)}: kept, recorded other"):
        what_if_module._changes(tmp_path, what_if_module.Rules((), (), scored=False), "filter/a")


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("filter.c4.remove_citations=false", "Stored signals cannot tell what filter.c4.remove_citations would change"),
        ("filter.gopher_quality.min_doc_word=80", "Unknown key filter.gopher_quality.min_doc_word"),
        ("dedup.threshold=0.5", "'dedup.threshold=0.5' is not a setting of filter"),
        ("filter.languages", "--set 'filter.languages' is not node.key=value"),
        ("filter.quality.min_score=0.5", "The documents have no score"),
    ],
)
def test_what_cannot_be_answered_is_refused(home: Path, setting: str, what: str) -> None:
    with pytest.raises(RecipeError) as caught:
        what_if(home, name(home), STAGE, [setting])
    assert caught.value.what.startswith(what)


def test_other_versions_and_other_code_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(STAGE, versions=(*STAGE.versions, "other signals"))
    with pytest.raises(StageError, match=f"Version {STAGE.version} of filter made the artifact"):
        what_if(home, name(home), newer, [])
    with pytest.raises(RecipeError, match="is not an artifact of dedup"):
        what_if(home, name(home), replace(STAGE, name="dedup"), [])
    monkeypatch.setattr("stages.questions.what_if.first_reason", lambda signals, settings: "other")
    with pytest.raises(StageError, match="Today's rules do not give the recorded verdict"):
        what_if(home, name(home), STAGE, [])
