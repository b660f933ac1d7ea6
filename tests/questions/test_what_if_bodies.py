"""what-if of boilerplate: its answer is what a rerun gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from stages.corpus.boilerplate import stage as boilerplate
from stages.questions.what_if_bodies import what_if_bodies
from stages.record.contract.errors import RecipeError, StageError
from stages.record.index import database
from tests.conftest import run_stage
from tests.stages.test_boilerplate import MENU, extracted, site, warc


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bodies")
    pages = [*site(), *site("two.example", menu=MENU + "<p>Two</p>"), ("http://one.example/f", "<nav>Menu</nav><p>Words of a page.</p>")]
    documents = extracted([warc(folder / "a.warc.gz", pages)], folder / "home")
    run_stage(boilerplate.STAGE, {}, {"documents": documents}, folder / "home")
    database.update(folder / "home")
    return folder / "home"


def asked(home: Path, *settings: str) -> dict[str, Any]:
    return {row["lines"]: row for row in what_if_bodies(home, "boilerplate", boilerplate.STAGE, settings)}


@pytest.mark.parametrize("setting", ["min_pages=9", "min_page_frac=0.99", "island_words=0", "always_frac=1"])
def test_the_answer_is_what_a_rerun_gives(home: Path, tmp_path: Path, setting: str) -> None:
    shutil.copytree(home, tmp_path / "home")
    found = asked(home, f"boilerplate.{setting}")
    name, _, value = setting.partition("=")
    documents = extracted([home.parent / "a.warc.gz"], tmp_path / "home")
    again = run_stage(boilerplate.STAGE, {name: float(value) if "." in value else int(value)}, {"documents": documents}, tmp_path / "home")
    for rule in (row for row in found if row != "body"):
        assert found[rule]["chars_then"] == again.summary[f"{rule}_chars"], rule
        assert found[rule]["change"] == found[rule]["chars_then"] - found[rule]["chars_today"]
    assert sum(row["then"] for row in found.values()) == sum(row["today"] for row in found.values()) > 0
    assert (found["recurring"]["chars_then"] == 0) == (name in ("min_pages",)) or name != "min_pages"


def test_the_command_prints_a_row_per_rule(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "boilerplate", "--set", "boilerplate.min_pages=9", "--home", str(home), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert "recurring" in json.dumps(rows) and "body" in json.dumps(rows)


def test_what_needs_a_rerun_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"What boilerplate.format, boilerplate.min_chars, boilerplate.max_bad_char_frac decides needs a rerun"
    ) as caught:
        asked(home, "boilerplate.format=markdown", "boilerplate.min_chars=9", "boilerplate.max_bad_char_frac=0.5")
    assert "--until boilerplate" in caught.value.do
    with pytest.raises(RecipeError, match="'filter.c4.enabled=false' is not a setting of boilerplate"):
        asked(home, "filter.c4.enabled=false")
    with pytest.raises(RecipeError, match="is not an artifact of boilerplate"):
        what_if_bodies(home, "extract", boilerplate.STAGE, ["boilerplate.min_pages=9"])
    shutil.copytree(home, tmp_path / "home")
    (extract,) = (tmp_path / "home" / "artifacts" / "extract").iterdir()
    shutil.rmtree(extract)
    with pytest.raises(RecipeError, match="Its pages are gone") as caught:
        asked(tmp_path / "home", "boilerplate.min_pages=9")
    assert "--until extract" in caught.value.do


def test_removals_of_other_code_are_noticed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.corpus.boilerplate.body_rules._Page.recurring_lines", lambda page: None)
    with pytest.raises(StageError, match=r"Today's rules remove [\d,]+ characters by recurring, recorded are [\d,]+"):
        asked(home, "boilerplate.min_pages=9")
