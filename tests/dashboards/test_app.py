"""The dashboard: what it shows of the tiny run, in a real browser too; empty and damaged homes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from dashboards.app import make_app, serve
from flows.road import road
from stages.core.errors import StageError
from tests.conftest import PROJECT

NODES = [node.name for node in road()]


def page(home: Path, query: str = "") -> str:
    answer = TestClient(make_app(home, NODES)).get(f"/{query}")
    assert answer.status_code == 200
    return answer.text


def test_shows_runs_nodes_artifacts_loss_and_scores(tiny_home: Path) -> None:
    text = page(tiny_home)
    for words in ("Runs", "Nodes of", "pretrain: loss by step", "Scores", "Artifacts", "evaluate@dpo"):
        assert words in text, words
    assert "<script" not in text


def test_an_unknown_run_shows_the_newest(tiny_home: Path) -> None:
    assert "Nodes of" in page(tiny_home, "?run=<b>nothing</b>") and "<b>nothing" not in page(tiny_home, "?run=<b>nothing</b>")


def test_an_empty_home_says_so(tmp_path: Path) -> None:
    assert "This home has no lineage yet" in page(tmp_path)


def test_refuses_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StageError, match="is taken"):
            serve(tmp_path, NODES, taken.getsockname()[1])


@pytest.mark.browser
def test_opens_in_a_real_browser(tiny_home: Path, tmp_path: Path) -> None:
    """Served by `loam dashboard`, opened in headless Chromium: laid out, curve drawn, nothing fetched from elsewhere."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if not browser_path:
        pytest.skip("no Chromium on this machine; `make test-browser` installs one")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "flows.cli", "dashboard", "--port", str(port), "--home", str(tiny_home)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
    try:
        _wait(f"http://127.0.0.1:{port}/")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
            opened = browser.new_page(viewport={"width": 1200, "height": 1400})
            asked: list[str] = []
            opened.on("request", lambda request: asked.append(request.url))
            opened.goto(f"http://127.0.0.1:{port}/")
            assert opened.title() == "Loam"
            assert opened.locator("svg.chart polyline").first.bounding_box()["width"] > 300
            assert opened.locator("#nodes + .wide tbody tr").count() == len(NODES)
            assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            opened.locator("#runs + .wide a").first.click() if opened.locator("#runs + .wide a").count() else None
            assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)
            opened.screenshot(path=str(tmp_path / "dashboard.png"), full_page=True)
            browser.close()
    finally:
        process.terminate()
        process.wait(timeout=15)


def _wait(url: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")
