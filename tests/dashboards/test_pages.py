"""The pages on a small home: the summary values that a stage declares, the links between runs and nodes, and the declared pages."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

from dashboards import page as declaring
from dashboards.app import make_app
from dashboards.pages import runs_page
from flows.pipeline import pipeline, stage_of
from stages.record.contract.errors import StageError
from stages.record.index import database
from tests.questions.two_runs import make_artifact, make_run

SUMMARIES = {
    1: {"documents": 1_234_567, "exact_duplicates": 3, "near_duplicates": 2, "pairs_compared": 9},
    2: {"documents": 0.12345678, "exact_duplicates": "<i>none</i>", "near_duplicates": None},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A browser with the cookie, and a home with two runs of dedup."""
    home = tmp_path_factory.mktemp("home")
    for number, summary in SUMMARIES.items():
        name = make_artifact(home, "dedup", number, {}, {})
        path = home / "artifacts" / name / "manifest.json"
        unit = {"unit": "documents"} if number == 1 else {}  # older manifests have none
        path.write_text(json.dumps(json.loads(path.read_text()) | {"summary": summary} | unit))
        make_run(home, number, [name])
    database.update(home)
    browser = TestClient(make_app(home, {node.name: stage_of(node) for node in pipeline()}, "secret"), base_url="http://127.0.0.1:1")
    browser.get("/?token=secret")
    return browser


def test_the_first_page_shows_the_declared_values_of_the_chosen_run(client: TestClient) -> None:
    text = client.get("/?run=run-1").text
    assert "documents 1,234,567 · exact_duplicates 3 · near_duplicates 2<" in text and "pairs_compared" not in text
    assert '<a href="/node?node=dedup">dedup</a>' in text and '<a href="/?run=run-2">run-2</a>' in text
    assert '<th class="number">rows</th><th>unit</th>' in text and '<td class="number">1</td><td>documents</td>' in text
    newest = client.get("/").text
    assert "documents 0.1235 · exact_duplicates &lt;i&gt;none&lt;/i&gt; · near_duplicates <" in newest


def test_the_page_of_a_node_has_a_column_per_declared_value_and_a_row_per_run(client: TestClient) -> None:
    text = client.get("/node?node=dedup").text
    rows = re.findall(r'<tr><td><a href="/\?run=(run-\d)">.*?</tr>', text, re.DOTALL)
    assert rows == ["run-2", "run-1"]
    cells = re.findall(r'<td class="number">(.*?)</td>', text.partition('run=run-1">')[2].partition("</tr>")[0])
    assert cells == ["1.0", "1 documents", "0", "1,234,567", "3", "2"], "seconds, size, tokens, then what the stage declares"
    assert re.findall(r'title="([^"]+)"', text) == list(stage_of(next(n for n in pipeline() if n.name == "dedup")).summary.values())
    assert "dedup/" not in client.get("/node?node=filter").text


def test_a_running_page_is_loaded_again_and_a_finished_one_is_not(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "refresh" not in client.get("/").headers
    row = {
        "run_id": "run-2",
        "alias": "tiny-2",
        "name": "",
        "recipe": "tiny",
        "state": "running",
        "started": "2026-01-01",
        "seconds": None,
        "cached": 0,
    }
    monkeypatch.setattr(runs_page, "run_rows", lambda home: [row | {"built": 1, "failed": None}])
    assert client.get("/").headers["refresh"] == "10"


def test_two_pages_of_one_path_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [page.path for page in declaring.all_pages()] == ["/", "/node", "/trace"]
    monkeypatch.setattr("dashboards.pages.node_page.PAGE", runs_page.PAGE)
    with pytest.raises(StageError, match="Two pages have the path /"):
        declaring.all_pages()


def test_a_state_of_a_later_version_is_shown_as_it_is() -> None:
    from dashboards import data
    from stages.corpus.dedup.stage import STAGE

    line = data._node_line("dedup", STAGE, "paused", None, "", {})
    assert (line.state, line.style, line.seconds) == ("paused", "soft", "")
