"""The page that says where a text comes from: a real index of hostile documents, the texts of models, the form's limits, a home without an index."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from dashboards import data
from dashboards.app import HEADERS, make_app
from dashboards.pages import trace_page
from flows.cli.question_commands import trace
from flows.pipeline import pipeline, stage_of
from stages.corpus.text_index import stage as text_index
from stages.corpus.text_index.example_texts import TextKind
from stages.questions.tracing.indexed_texts import SearchedTexts
from stages.questions.tracing.trace_text import MIN_WORDS, SpanDocument, TextSpan, TracedText
from stages.questions.tracing.traced import RecordOutcome
from stages.record.contract.declaration import Artifact
from stages.record.index import database
from stages.record.store import manifest
from stages.training.run.training_tables import TEXT_SAMPLES
from tests.conftest import run_stage
from tests.questions.two_runs import DECISION, doc, make_artifact, make_run

MORE = "`loam trace --text TEXT --run tiny-1 --json` names all"
EVIL = "<script>alert(1)</script> & 'one' \"two\"\nthree four five six\tseven"
DOCUMENTS = (EVIL, "eins zwei drei vier fünf sechs", "eins zwei drei vier fünf sechs sieben")
SEARCHED = tuple(SearchedTexts(kind, "", "") for kind in TextKind)
SAMPLES = (
    {"step": 2, "prompt": "late", "text": f"the model says: {EVIL} 100% a+b=c#d"},
    {"step": 1, "prompt": "<b>early</b>", "text": "ж" * 5000},
    {"step": 1, "prompt": "nothing", "text": ""},
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with run-1, whose documents have an index and whose sft wrote texts, and run-2, whose documents have none."""
    home = tmp_path_factory.mktemp("traced") / "home"
    shape = {"doc_id": "uuid", "source": "string", "url": "string", "text": "string"}
    rows = [{"doc_id": doc(n), "source": "web", "url": f"javascript:alert({n})//<i>", "text": text} for n, text in enumerate(DOCUMENTS)]
    decided = [{"doc_id": row["doc_id"], "url": row["url"], "verdict": "kept", "reason": None} for row in rows]
    tables = {"documents/00000.parquet": (shape, rows), "decisions/00000.parquet": (DECISION, decided)}
    clean = make_artifact(home, "decontaminate", 1, {}, tables)
    documents: Artifact = manifest.read_artifact(home / "artifacts" / clean)
    run_stage(text_index.STAGE, {"piece_mib": 1}, {"documents": documents}, home)
    spans = dict.fromkeys(("start", "length", "bytes"), "int64") | {"doc_id": "uuid", "shard": "int32"}
    tokens = make_artifact(home, "encode", 1, {"documents": clean}, {"spans/00000.parquet": (spans, [])})
    trained = make_artifact(home, "pretrain", 1, {"tokens": tokens}, {})
    tuned = make_artifact(home, "sft", 1, {"checkpoint": trained}, {"text_samples.parquet": (TEXT_SAMPLES.types, SAMPLES)})
    make_run(home, 1, [clean, tokens, trained, tuned])
    make_run(home, 2, [make_artifact(home, "decontaminate", 2, {}, {"decisions/00000.parquet": (DECISION, decided)})])
    database.update(home)
    return home


@pytest.fixture(scope="module")
def client(home: Path) -> TestClient:
    browser = TestClient(make_app(home, {node.name: stage_of(node) for node in pipeline()}, "secret"), base_url="http://127.0.0.1:1")
    browser.get("/?token=secret")
    return browser


def asked(client: TestClient, **parameters: str) -> str:
    answer = client.get("/trace", params={"run": "run-1", **parameters})
    assert answer.status_code == 200
    return answer.text


def spans(page: str) -> list[str]:
    return [unescape(one) for one in re.findall(r"<pre>\n(.*?)</pre>", page, re.DOTALL)]


def test_the_spans_of_a_text_name_their_documents(client: TestClient) -> None:
    page = asked(client, text="so eins zwei drei vier fünf sechs acht", min_words="4")
    assert spans(page) == ["eins zwei drei vier fünf sechs"]
    assert "6 words, 2 times in the documents<" in page and "in the documents that sft-1 was made from. Spans" in page
    assert all(f"<td>{doc(n)}</td>" in page for n in (1, 2)) and f"<td>{doc(0)}</td>" not in page
    assert page.count("kept; no mixture is known") == 2
    assert "No 7 words of it in a row are in the documents that sft-1 was made from.<" in asked(
        client, text="eins zwei drei vier fünf sechs", min_words="7"
    )
    assert inspect.signature(trace).parameters["min_words"].default == MIN_WORDS, "page and command look for the same"


def test_hostile_texts_and_documents_are_escaped(client: TestClient) -> None:
    page = asked(client, text=EVIL.replace("\n", "\r\n"), min_words="1", run="tiny-1")
    assert spans(page) == [EVIL.partition("<")[2]], "the line break of a form is that of the document"
    assert unescape(re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)[0]) == EVIL
    for part in ("<script", "<b>", "<i>", 'href="javascript', "'one' \"two\""):
        assert part not in page, part
    assert "javascript:alert(0)//&lt;i&gt;" in page, "a URL of a crawl is text, and no link"
    for text in (
        "</textarea><script>",
        '" autofocus onfocus="x',
        "{{ 7 * 7 }}",
        "\0\x1b[2J",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ):
        assert "No 6 words of it in a row" in asked(client, text=text) and "<script" not in asked(client, text=text)


def test_a_text_of_a_model_has_a_link_that_fills_it_in(client: TestClient) -> None:
    page = asked(client)
    rows = re.findall(r'<tr><td>sft</td><td class="number">(\d)</td><td>(.*?)</td><td>(.*?)</td>\s*<td><a href="(.*?)">', page, re.DOTALL)
    assert [(int(step), unescape(prompt), unescape(text)) for step, prompt, text, _ in rows] == [
        (one["step"], one["prompt"], one["text"]) for one in SAMPLES
    ]
    for (_, _, _, link), sample in zip(rows, SAMPLES, strict=True):
        address = urlsplit(unescape(link))
        assert address.path == "/trace" and not address.fragment and len(link) < 60_000
        assert parse_qs(address.query, keep_blank_values=True)["text"] == [str(sample["text"])[: trace_page.MAX_CHARS]]
    assert page.count("where from?<") == 2 and page.count("where from? (first 4,096 characters)<") == 1
    opened = client.get(unescape(rows[0][3])).text
    assert "that sft-1 was made from. Spans" in opened, "not that of pretrain, which did not write it"
    assert "Trainings after sft-1 do not count." in opened
    assert "Trainings after sft-1 do not count." in asked(client, text=EVIL), "the last model of the run"
    assert "Trainings after pretrain-1 do not count." in asked(client, text=EVIL, checkpoint="pretrain-1")
    assert "There is no artifact &#39;sft-9&#39; here" in asked(client, text=EVIL, checkpoint="sft-9")
    assert spans(opened) == [EVIL.partition("<")[2]] and "selected>tiny-1<" in opened
    assert "wrote</h2>" not in asked(client, run="run-2"), "run-2 has no training"


def test_the_last_texts_are_listed(client: TestClient, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MAX_TEXTS", 1)
    assert [one.prompt for one in data.written_texts(home, "run-1")] == ["late"]


def test_a_run_without_an_index_says_how_to_switch_it_on(client: TestClient) -> None:
    for parameters in ({"run": "run-2"}, {"run": "run-2", "text": "eins zwei drei vier fünf sechs"}, {}):
        page = client.get("/trace", params=parameters).text  # without a run, the newest one
        assert "The texts that decontaminate-2 was made from have no index" in page
        assert "text_index: {piece_mib: 256}" in page and "<textarea" in page
        assert not spans(page) and 'id="spans"' not in page


def test_what_is_out_of_the_limits_is_refused_on_the_page(client: TestClient) -> None:
    page = asked(client, text="x " * 2049)
    assert (
        "The text has 4,098 characters; this page takes at most 4,096." in page and "or use `loam trace --text TEXT --run tiny-1`." in page
    )
    assert "No 6 words" in asked(client, text="x " * 2048)
    for words in ("0", "-1", "1001", "٣", "x", "1e3", "9" * 5000):
        page = asked(client, text="eins zwei drei", min_words=words)
        assert "The shortest span is not a number of words" in page and "Give a number from 1 to 1000." in page, words
    assert asked(client, text="eins zwei", min_words="1000").count("No 1000 words") == 1


def test_steps_and_the_first_spans_are_shown(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    document = SpanDocument("d", None, RecordOutcome.TRAINED, "pretrain", (4, 5), tuple(range(25)), (7, 9))
    found = TracedText(
        SEARCHED[:1],
        {},
        tuple(TextSpan(f"s{n}", 0, 2, 1, 1, {TextKind.DOCUMENT: 1}, (document,)) for n in range(trace_page.MAX_SPANS + 2)),
    )
    monkeypatch.setattr(trace_page, "trace_text", lambda *arguments: found)
    page = asked(client, text="anything")
    assert len(spans(page)) == trace_page.MAX_SPANS and f"2 more spans are not shown; {MORE}." in page
    assert (
        "<td>pretrain 4, 5</td>" in page and "pretrain steps 0, 1, 2, 3" in page and f"18, 19 and 5 more; {MORE}; sft steps 7, 9<" in page
    )
    page = asked(client, text="anything", checkpoint="sft-1")
    assert page.count(f"; {MORE.replace('--run tiny-1', '--checkpoint sft-1')}") == trace_page.MAX_SPANS + 1
    assert "1 words, 1 time in the documents" in page


def test_conversations_and_pairs_are_named_with_source_and_role(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a name of a file or a role that is not escaped, the steps of a pair under sft."""
    found = (
        SpanDocument("c", None, RecordOutcome.TRAINED, "sft", (4,), (), (7,), TextKind.CONVERSATION, "<b>.jsonl", "assistant"),
        SpanDocument("p", None, RecordOutcome.TRAINED, "dpo", (), (), (8,), TextKind.PREFERENCE_PAIR, "docs:x", "chosen"),
        SpanDocument("d", None, RecordOutcome.KEPT, "pretrain", (), (), ()),
    )
    counts = {TextKind.DOCUMENT: 0, TextKind.CONVERSATION: 1, TextKind.PREFERENCE_PAIR: 1234}
    monkeypatch.setattr(
        trace_page, "trace_text", lambda *arguments: TracedText(SEARCHED, {}, (TextSpan("s", 0, 1, 1, 1235, counts, found),))
    )
    page = asked(client, text="anything")
    assert "1 words, 1 time in the conversations, 1,234 times in the preference pairs<" in page
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", page, re.DOTALL)]
    assert rows[:3] == [
        ["conversation", "c", "&lt;b&gt;.jsonl, assistant", "sft 4", "sft steps 7"],
        ["preference pair", "p", "docs:x, chosen", "", "dpo steps 8"],
        ["document", "d", "", "", "kept; no mixture is known"],
    ]


def test_kinds_that_were_not_searched_are_named_with_the_reason(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a reason that is not shown, or shown only with spans; a kind that was not searched in the sentence of those that were."""
    found = TracedText(SEARCHED[2:], {TextKind.DOCUMENT: "encode/<i> is not in this home", TextKind.CONVERSATION: "no index holds c"}, ())
    for spans in ((), (TextSpan("s", 0, 1, 1, 1, {TextKind.PREFERENCE_PAIR: 1}, ()),)):
        monkeypatch.setattr(trace_page, "trace_text", lambda *arguments, spans=spans: replace(found, spans=spans))
        page = asked(client, text="anything")
        assert "Documents were not searched: encode/&lt;i&gt; is not in this home.<" in page
        assert "Conversations were not searched: no index holds c.<" in page and "Preference pairs were not" not in page
        assert page.count("are in the preference pairs that sft-1 was made from.<") == (not spans)
        assert "verbatim in the preference pairs that sft-1 was made from. Spans" in page


def test_the_page_is_closed_like_the_others_and_its_form_stays_here(client: TestClient, home: Path, tmp_path: Path) -> None:
    stages = {node.name: stage_of(node) for node in pipeline()}
    stranger = TestClient(make_app(home, stages, "secret"), base_url="http://127.0.0.1:1")
    assert stranger.get("/trace", params={"text": EVIL}).status_code == 401
    assert stranger.get("/trace?token=secret", headers={"Host": "evil.example"}).status_code == 400
    opened = stranger.get("/trace", params={"token": "secret", "run": "run-1", "text": "a & b"}, follow_redirects=False)
    assert opened.headers["location"] == "/trace?run=run-1&text=a+%26+b"
    answer = client.get("/trace")
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS and "form-action 'self'" in HEADERS["Content-Security-Policy"]
    assert '<form action="/trace" method="get">' in answer.text and answer.text.count("<form") == 1
    assert client.post("/trace", data={"text": "x"}).status_code == 405
    empty = TestClient(make_app(tmp_path, stages, "secret"), base_url="http://127.0.0.1:1")
    assert "This home has no lineage yet" in empty.get("/trace?token=secret").text
