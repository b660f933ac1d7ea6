"""Serves the web dashboard on 127.0.0.1: one read-only page without scripts that shows runs, nodes, artifacts, loss curves and scores.

Each page opens the index read-only and never blocks a run. The module does not import torch.
Guarantee: only a browser that opened the URL printed by `loam dashboard` gets the page. The URL has a token that is new at each start.
The server moves the token into a cookie and removes it from the address. A request without token or cookie gets 401. A request for a
Host name that is not of this machine gets 400 (dashboards/guard.py).
Limit: cookies are shared by all ports. A server on another port of 127.0.0.1 receives the cookie if the same browser opens it, so run no
server there that you do not trust.
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
    """The ASGI application.

    Args:
        home: the home folder.
        nodes: the names of the nodes, in pipeline order.
        token: the secret that a browser must send, in the address or as a cookie.
    """
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
    """A redirect that sets the cookie if the address has the token; None if the cookie is valid; 401 otherwise."""
    from fastapi.responses import PlainTextResponse, RedirectResponse

    cookie = f"loam-{sha256(token.encode()).hexdigest()[:12]}"  # all ports share cookies: two dashboards need two cookie names
    if _equal(request.query_params.get("token", ""), token):
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        answer = RedirectResponse(f"/?{rest}" if rest else "/", status_code=303)
        answer.set_cookie(cookie, token, httponly=True, samesite="strict")
        return answer
    return None if _equal(request.cookies.get(cookie, ""), token) else PlainTextResponse(CLOSED, status_code=401)


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())  # constant time, so that timing reveals nothing


def serve(home: Path, nodes: Sequence[str], port: int, announce: Callable[[str], None]) -> None:
    """Serves the dashboard until interrupted.

    Args:
        home: the home folder.
        nodes: the names of the nodes, in pipeline order.
        port: the port of 127.0.0.1; 0 takes a free one.
        announce: called once with the URL to open.

    Raises:
        StageError: the port is in use.
    """
    import uvicorn

    token = secrets.token_urlsafe(32)
    with bound(port) as listener:
        listener.listen()  # a browser that opens the URL before the server is up waits and is not refused
        announce(f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}")
        uvicorn.Server(uvicorn.Config(make_app(home, nodes, token), log_level="warning")).run(sockets=[listener])


def bound(port: int) -> socket.socket:
    """A socket bound to a port of 127.0.0.1. Raises StageError if the port is in use."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise StageError(f"Port {port} is taken.", where="127.0.0.1", do="Stop what uses it or choose another with --port.") from None
    return listener
