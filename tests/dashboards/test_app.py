"""Who may open the dashboard, by HTTP and by WebSocket, and what a browser may do with its answers."""

from __future__ import annotations

import re
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
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from dashboards.app import make_app, serve
from dashboards.guard import CLOSED, HEADERS
from dashboards.pages.trace_page import MAX_CHARS
from flows.pipeline import pipeline, stage_of
from stages.record.contract.errors import StageError
from tests.conftest import PROJECT

pytestmark = pytest.mark.long

STAGES = {node.name: stage_of(node) for node in pipeline()}
TOKEN = "the-token-of-this-test"
SOCKET = "ws://127.0.0.1:8765/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
HERE = "http://127.0.0.1:8765"


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The application of an empty home, started; its client has no cookie."""
    with TestClient(make_app(tmp_path_factory.mktemp("empty"), STAGES, TOKEN), base_url=HERE) as client:
        yield client


@pytest.fixture
def client(entered: TestClient) -> TestClient:
    """A browser that has not been here."""
    entered.cookies.clear()
    return entered


def test_only_the_printed_url_opens_it(client: TestClient, tmp_path: Path) -> None:
    addresses = ("/", "/?token=", "/?token=wrong", f"/?token={TOKEN}x", f"/?run={TOKEN}", "/docs", "/openapi.json", "/?token=%ff%00ß", "/_nicegui/x",
                 "/_nicegui_ws/socket.io/?EIO=4&transport=polling", f"/_nicegui_ws/socket.io/?EIO=4&transport=polling&client_id={TOKEN}")  # fmt: skip
    for address in addresses:
        answer = client.get(address, headers={"Cookie": "loam=x; token=" + TOKEN})
        assert answer.status_code == 401 and answer.text == CLOSED and "set-cookie" not in answer.headers, address
    opened = client.get(f"/?token={TOKEN}&run=tiny-1&run=%22%3E", follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/?run=tiny-1&run=%22%3E"), "the token is gone from the address"
    flags = opened.headers["set-cookie"].lower()
    assert "httponly" in flags and "samesite=strict" in flags and "max-age" not in flags
    assert client.get("/").status_code == 200, "the cookie is enough from now on"
    other = TestClient(make_app(tmp_path, STAGES, "another"), base_url="http://127.0.0.1:8766", cookies=dict(client.cookies))
    assert other.get("/").status_code == 401, "the cookie of one dashboard does not open another"
    assert client.get(f"//evil.example?token={TOKEN}", follow_redirects=False).headers["location"] == "/"


def test_another_name_and_another_origin_are_refused_with_the_token_too(client: TestClient) -> None:
    for host in ("evil.example:8765", "127.0.0.1.evil.example", ""):
        answer = client.get(f"/?token={TOKEN}", headers={"Host": host}, follow_redirects=False)
        assert answer.status_code == 400 and "set-cookie" not in answer.headers
    client.get(f"/?token={TOKEN}")
    for origin in (
        "http://evil.example",
        "http://127.0.0.1:9999",
        "https://127.0.0.1:8765",
        "null",
        "http://127.0.0.1:8765.evil.example",
        "",
    ):
        for ask in (client.get, client.post):
            assert ask("/_nicegui_ws/socket.io/?EIO=4&transport=polling", headers={"Origin": origin}).status_code == 403, origin
    assert client.get("/", headers={"Host": "localhost:8765", "Origin": "http://localhost:8765"}).status_code == 200


def shaken(client: TestClient, **headers: str) -> int:
    """The status of a WebSocket handshake: 101 if the server's first message came."""
    try:
        with client.websocket_connect(SOCKET, headers={"origin": HERE, "upgrade": "websocket", **headers}) as connection:
            assert connection.receive_text().startswith('0{"sid"')
            return 101
    except WebSocketDenialResponse as refused:
        return refused.status_code
    except WebSocketDisconnect:
        return 403


def test_a_websocket_needs_token_host_and_origin(client: TestClient) -> None:
    assert shaken(client) == 401
    assert shaken(client, cookie="loam=" + TOKEN) == 401
    client.get(f"/?token={TOKEN}")
    assert shaken(client) == 101
    for origin in ("http://evil.example", "http://127.0.0.1:9999", "https://127.0.0.1:8765", "null", ""):
        assert shaken(client, origin=origin) == 403, origin
    with pytest.raises((WebSocketDenialResponse, WebSocketDisconnect)), client.websocket_connect(SOCKET):
        pass  # without an Origin, which every browser sends
    assert shaken(client, host="evil.example") == 400


def test_every_answer_keeps_foreign_scripts_frames_and_referrers_out(client: TestClient) -> None:
    closed = client.get("/")
    answers = [closed, client.get(f"/?token={TOKEN}", follow_redirects=False), client.get("/"), client.get("/nothing")]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS and answer.headers["Cache-Control"] == "no-store"
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
        assert "unsafe-inline" not in policy["script-src"] and policy["connect-src"] == "'self'" and "http" not in " ".join(policy.values())
    page = answers[2]
    nonce = re.findall(r"'nonce-([^']+)'", page.headers["Content-Security-Policy"])[0]
    assert page.text.count("<script") == page.text.count(f'<script nonce="{nonce}"') >= 5
    assert nonce not in closed.headers["Content-Security-Policy"], "each answer has its own"
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page.text), "nothing is loaded from elsewhere"


def test_refuses_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StageError, match="is taken"):
            serve(tmp_path, STAGES, taken.getsockname()[1], lambda url: pytest.fail("it was announced"))


def test_the_command_prints_the_url_that_opens_it_and_a_new_one_each_time(tmp_path: Path) -> None:
    printed = []
    for _ in range(2):
        with served(tmp_path) as url:
            printed.append(url)
            assert "This home has no lineage yet" in httpx.Client(follow_redirects=True).get(url, timeout=60).text
            assert httpx.get(url.partition("?")[0], timeout=30).status_code == 401
            assert httpx.get(url, headers={"Host": "evil.example"}, timeout=30).status_code == 400
            longest = f"{url.partition('?')[0]}trace?run={'r' * 64}&min_words=6&text={'%F0%9F%98%80' * MAX_CHARS}"
            assert httpx.get(longest, timeout=30).status_code == 401, "the server reads the longest address of the page of a text"
            assert answered_in_parts(longest).startswith("HTTP/1.1 401 "), "the parts of a head count together"
    assert printed[0].partition("token=")[2] != printed[1].partition("token=")[2]


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
    command = [sys.executable, "-m", "flows.cli", "dashboard", "--port", "0", "--home", str(home)]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert re.match(r"http://127\.0\.0\.1:\d+/\?token=", url)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)
