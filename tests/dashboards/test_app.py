"""The dashboard: its access, what it shows of the tiny run, in a real browser too, and an empty home."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from dashboards.app import CLOSED, HEADERS, make_app, serve
from dashboards.pages.trace_page import MAX_CHARS
from flows.pipeline import pipeline, stage_of
from stages.record.contract.errors import StageError
from tests.conftest import PROJECT

pytestmark = pytest.mark.long

STAGES = {node.name: stage_of(node) for node in pipeline()}

TOKEN = "the-token-of-this-test"


def visitor(home: Path) -> TestClient:
    """A browser that has not been here."""
    return TestClient(make_app(home, STAGES, TOKEN), base_url="http://127.0.0.1:8765")


def page(home: Path, query: str = "", path: str = "/") -> str:
    answer = visitor(home).get(f"{path}?token={TOKEN}&{query}")
    assert answer.status_code == 200
    return answer.text


def test_shows_runs_nodes_artifacts_loss_and_scores(tiny_home: Path) -> None:
    text = page(tiny_home)
    for words in ("Runs", "Nodes of", "pretrain: loss by step", "Scores", "Artifacts", "evaluate@dpo"):
        assert words in text, words
    assert "<script" not in text
    node = page(tiny_home, path="/node", query="node=dedup")
    for words in ('<h2 id="runs">', "exact_duplicates", "built", "dedup/"):
        assert words in node, words


def test_an_unknown_run_shows_the_newest(tiny_home: Path) -> None:
    assert "Nodes of" in page(tiny_home, "run=<b>nothing</b>") and "<b>nothing" not in page(tiny_home, "run=<b>nothing</b>")


def test_an_empty_home_says_so(tmp_path: Path) -> None:
    assert "This home has no lineage yet" in page(tmp_path)


def test_the_page_of_a_node_shows_its_declaration_in_a_home_without_runs(tmp_path: Path) -> None:
    text = page(tmp_path, "node=dedup", "/node")
    for words in ("dedup", "exact and MinHash duplicates", "repeats.max_per_source", "CCNet", "This home has no lineage yet", "bands out of core",
                  "clusters, view clusters", "number of the cluster in this artifact", 'href="/node?node=filter"'):  # fmt: skip
        assert words in text, words
    assert 'href="/node?node=evaluate%40sft"' in page(tmp_path, "node=<b>", "/node"), "an unknown node gives the list of all"
    for node in STAGES:
        assert f'<h2 id="node">{node}</h2>' in page(tmp_path, f"node={node}", "/node")


def test_refuses_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StageError, match="is taken"):
            serve(tmp_path, STAGES, taken.getsockname()[1], lambda url: pytest.fail("it was announced"))


def test_only_the_printed_url_opens_it(tmp_path: Path) -> None:
    client = visitor(tmp_path)
    for address in ("/", "/?token=", "/?token=wrong", f"/?token={TOKEN}x", f"/?run={TOKEN}", "/docs", "/openapi.json", "/?token=%ff%00ß"):
        answer = client.get(address, headers={"Cookie": "loam=x; token=" + TOKEN})
        assert answer.status_code == 401 and answer.text == CLOSED and "set-cookie" not in answer.headers, address
        assert "no lineage" not in answer.text
    opened = client.get(f"/?token={TOKEN}&run=tiny-1&run=%22%3E", follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/?run=tiny-1&run=%22%3E"), "the token is gone from the address"
    flags = opened.headers["set-cookie"].lower()
    assert "httponly" in flags and "samesite=strict" in flags and "max-age" not in flags
    assert client.get("/").status_code == 200, "the cookie is enough from now on"
    other = TestClient(make_app(tmp_path, STAGES, "another"), base_url="http://127.0.0.1:8766", cookies=dict(client.cookies))
    assert other.get("/").status_code == 401, "the cookie of one dashboard does not open another"
    assert visitor(tmp_path).get(f"//evil.example?token={TOKEN}", follow_redirects=False).headers["location"] == "/"


def test_another_name_is_refused_with_the_token_too(tmp_path: Path) -> None:
    for host in ("evil.example:8765", "127.0.0.1.evil.example", ""):
        answer = visitor(tmp_path).get(f"/?token={TOKEN}", headers={"Host": host}, follow_redirects=False)
        assert answer.status_code == 400 and "set-cookie" not in answer.headers
    assert visitor(tmp_path).get(f"/?token={TOKEN}", headers={"Host": "localhost:8765"}).status_code == 200


def test_every_answer_keeps_scripts_frames_and_referrers_out(tmp_path: Path) -> None:
    client = visitor(tmp_path)
    for answer in (client.get("/"), client.get(f"/?token={TOKEN}", follow_redirects=False), client.get("/"), client.get("/nothing")):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = dict(part.strip().partition(" ")[::2] for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'" and "script-src" not in policy
    assert (HEADERS["Referrer-Policy"], HEADERS["Cache-Control"]) == ("no-referrer", "no-store")


def test_the_command_prints_the_url_that_opens_it_and_a_new_one_each_time(tmp_path: Path) -> None:
    printed = []
    for _ in range(2):
        with served(tmp_path) as url:
            printed.append(url)
            assert "This home has no lineage yet" in httpx.Client(follow_redirects=True).get(url, timeout=30).text
            assert httpx.get(url.partition("?")[0], timeout=30).status_code == 401
            assert httpx.get(url, headers={"Host": "evil.example"}, timeout=30).status_code == 400
            longest = f"{url.partition('?')[0]}trace?run={'r' * 64}&min_words=6&text={'%F0%9F%98%80' * MAX_CHARS}"
            assert httpx.get(longest, timeout=30).status_code == 401, "the server reads the longest address of the page of a text"
            assert answered_in_parts(longest).startswith("HTTP/1.1 401 "), "the parts of a head count together"
    assert printed[0].partition("token=")[2] != printed[1].partition("token=")[2]


@pytest.mark.browser
def test_opens_in_a_real_browser(tiny_home: Path, tmp_path: Path) -> None:
    """Served by `loam dashboard`, opened in headless Chromium: laid out, curve drawn, nothing fetched from elsewhere."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if not browser_path:
        pytest.skip("browser: no Chromium on this machine; `make test-browser` installs one")
    with served(tiny_home) as url, sync_playwright() as playwright:
        root = url.partition("?")[0]
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1200, "height": 1400})
        asked: list[str] = []
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(url)
        assert opened.title() == "Loam" and opened.url == root
        assert opened.locator("svg.chart polyline").first.bounding_box()["width"] > 300
        assert opened.locator("#nodes + .wide tbody tr").count() == len(STAGES)
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        opened.locator("#runs + .wide a").first.click() if opened.locator("#runs + .wide a").count() else None
        opened.locator("#nodes + .wide a", has_text="dedup").first.click()
        assert opened.url == f"{root}node?node=dedup" and opened.locator("#settings").count() == 1
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert all(address.startswith(root) for address in asked)
        opened.screenshot(path=str(tmp_path / "dashboard.png"), full_page=True)
        browser.close()


def answered_in_parts(url: str) -> str:
    """Returns the first line of the answer to a request that is sent in two parts, with time for the server to read the first alone."""
    root = httpx.URL(url)
    head = f"GET {root.raw_path.decode()} HTTP/1.1\r\nHost: {root.host}:{root.port}\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection((root.host, root.port or 0), timeout=30) as connection:
        connection.sendall(head[:40_000])
        time.sleep(0.3)
        connection.sendall(head[40_000:])
        return connection.makefile("rb").readline().decode()


@contextmanager
def served(home: Path) -> Iterator[str]:
    """`loam dashboard` on a free port; the URL that it printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "flows.cli", "dashboard", "--port", str(port), "--home", str(home)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert url.startswith(f"http://127.0.0.1:{port}/?token=")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=15)
