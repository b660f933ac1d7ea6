"""The web dashboard on 127.0.0.1: one page, read-only, without script: runs, nodes, artifacts, loss curves, scores.

It opens the index read-only for each page and never blocks a running recipe. Imports no torch.
Guarantee: it answers who opened the URL that `loam dashboard` printed: its token, new at each start, becomes a cookie of this browser
and leaves the address. Everybody else gets 401, and under another name than this machine's 400 (dashboards/guard.py). Another port of
127.0.0.1 may see the cookie when the same browser opens it, so run nothing there that you do not trust.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from dashboards.data import overview
from dashboards.guard import local_only
from stages.core.contract.errors import LoamError, StageError
from stages.text.web.theme import render

if TYPE_CHECKING:
    from fastapi import Request, Response
    from starlette.types import ASGIApp

REFRESH_S = 10
CLOSED = "This page opens by the whole URL that `loam dashboard` printed, with its token.\n"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
BODY = """
<h1>Loam</h1>
<p class="soft">{{ home }}</p>
{% if problem %}<p class="bad">{{ problem }}</p>{% elif not chosen %}<p>No run is recorded yet. Start one with <code>loam run tiny</code>.</p>{% else %}
<h2 id="runs">Runs</h2>
<div class="wide"><table><thead><tr><th>run</th><th>recipe</th><th>state</th><th>started (UTC)</th><th class="number">seconds</th>
<th class="number">built</th><th class="number">cached</th><th>failed</th></tr></thead><tbody>
{% for run in runs %}<tr><td>{% if run.run_id == chosen.run_id %}<b>{{ run.run_id }}</b>{% else %}<a href="/?run={{ run.run_id }}">{{ run.run_id }}</a>{% endif %}</td>
<td>{{ run.recipe }}</td><td class="{{ 'good' if run.state == 'done' else 'wait' if run.state == 'running' else 'bad' }}">{{ run.state }}</td>
<td>{{ run.started }}</td><td class="number">{{ run.seconds if run.seconds is not none else '' }}</td><td class="number">{{ run.built }}</td>
<td class="number">{{ run.cached }}</td><td class="bad">{{ run.failed or '' }}</td></tr>
{% endfor %}</tbody></table></div>
<h2 id="nodes">Nodes of {{ chosen.run_id }}</h2>
<div class="wide"><table><thead><tr><th>node</th><th>state</th><th class="number">seconds</th><th></th></tr></thead><tbody>
{% for node in nodes %}<tr><td>{{ node.node }}</td><td class="{{ node.class }}">{{ node.state }}</td><td class="number">{{ node.seconds }}</td>
<td class="bad">{{ node.message }}</td></tr>{% endfor %}</tbody></table></div>
{% if charts %}<h2 id="loss">Loss</h2>{% for chart in charts %}{{ chart|safe }}{% endfor %}{% endif %}
{% if scores %}<h2 id="scores">Scores</h2>{{ grid(scores, models) }}{% endif %}
{% if artifacts %}<h2 id="artifacts">Artifacts</h2>{{ grid(artifacts, ('rows', 'tokens', 'bytes')) }}{% endif %}
{% endif %}
"""


def make_app(home: Path, nodes: Sequence[str], token: str) -> ASGIApp:
    """The application; `nodes` is the pipeline in order, `token` what it is opened by."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse

    app = FastAPI(title="Loam", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def page(run: str = "") -> HTMLResponse:
        empty: dict[str, Any] = {
            "home": str(home),
            "runs": [],
            "chosen": None,
            "nodes": [],
            "artifacts": [],
            "charts": [],
            "scores": [],
            "problem": "",
        }
        try:
            values = {**empty, **overview(home, nodes, run)}
        except LoamError as error:
            values = {**empty, "problem": str(error)}
        models = [name for name in (values["scores"][0] if values["scores"] else {}) if name != "metric"]
        running = bool(values["chosen"]) and values["chosen"]["state"] == "running"
        return HTMLResponse(render(BODY, "Loam", models=models, **values), headers={"Refresh": str(REFRESH_S)} if running else {})

    @app.middleware("http")
    async def closed(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = _refused_or_redirected(request, token) or await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    return local_only(app)


def _refused_or_redirected(request: Request, token: str) -> Response | None:
    """The answer to who brings the token in the address or nothing; None for who has the cookie."""
    from fastapi.responses import PlainTextResponse, RedirectResponse

    cookie = f"loam-{sha256(token.encode()).hexdigest()[:12]}"  # cookies are shared by all ports: two dashboards do not log each other out
    if _equal(request.query_params.get("token", ""), token):
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        answer = RedirectResponse(f"/?{rest}" if rest else "/", status_code=303)
        answer.set_cookie(cookie, token, httponly=True, samesite="strict")
        return answer
    return None if _equal(request.cookies.get(cookie, ""), token) else PlainTextResponse(CLOSED, status_code=401)


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())  # takes as long wherever they differ


def serve(home: Path, nodes: Sequence[str], port: int, announce: Callable[[str], None]) -> None:
    """Serves until interrupted; `announce` gets the URL to open. Raises StageError when the port is taken."""
    import uvicorn

    token = secrets.token_urlsafe(32)
    with bound(port) as listener:
        listener.listen()  # who opens the URL before the server is up waits, and is not refused
        announce(f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}")
        uvicorn.Server(uvicorn.Config(make_app(home, nodes, token), log_level="warning")).run(sockets=[listener])


def bound(port: int) -> socket.socket:
    """A socket bound to a port of 127.0.0.1. Raises StageError when the port is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise StageError(f"Port {port} is taken.", where="127.0.0.1", do="Stop what uses it or choose another with --port.") from None
    return listener
