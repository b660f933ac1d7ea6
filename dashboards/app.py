"""Serves the web dashboard on 127.0.0.1: the read-only pages of dashboards/pages/, without scripts.

Each page opens the index read-only and never blocks a run. The module does not import torch.
Guarantee: only a browser that opened the URL printed by `loam dashboard` gets a page. The URL has a token that is new at each start.
The server moves the token into a cookie and removes it from the address. A request without token or cookie gets 401. A request for a
Host name that is not of this machine gets 400 (dashboards/guard.py).
Limit: cookies are shared by all ports. A server on another port of 127.0.0.1 receives the cookie if the same browser opens it, so run no
server there that you do not trust.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from dashboards.guard import local_only
from dashboards.page import DashboardPage, PageVisit, all_pages, page_html
from stages.record.contract.errors import StageError
from stages.record.processes import termination_raises

if TYPE_CHECKING:
    from fastapi import Request, Response
    from starlette.types import ASGIApp

    from stages.record.contract.declaration import Stage

REFRESH_S = 10
MAX_HEAD_BYTES = 1 << 16
"""Bytes of a request's head that the server accepts, also in pieces. The longest address of dashboards/pages/trace_page.py has 49 KB."""
CLOSED = "This page needs the whole URL that `loam dashboard` printed, with its token.\n"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def make_app(home: Path, stages: Mapping[str, Stage], token: str) -> ASGIApp:
    """Returns the ASGI application.

    Args:
        home: The home folder.
        stages: Node -> its stage, in pipeline order.
        token: The secret that a browser must send, in the address or as a cookie.
    """
    from fastapi import FastAPI

    app = FastAPI(title="Loam", docs_url=None, redoc_url=None, openapi_url=None)
    pages = all_pages()
    for page in pages:
        app.add_route(page.path, _endpoint(page, pages, home, stages))

    @app.middleware("http")
    async def closed(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = _refused_or_redirected(request, token, {page.path for page in pages}) or await call_next(request)
        answer.headers.update(HEADERS)
        return answer

    return local_only(app)


def _endpoint(
    page: DashboardPage, pages: tuple[DashboardPage, ...], home: Path, stages: Mapping[str, Stage]
) -> Callable[[Request], Response]:
    """Returns the function that answers the requests for a page. starlette runs it on a thread, so a slow query blocks no other page."""
    from fastapi.responses import HTMLResponse

    def endpoint(request: Request) -> Response:
        html, live = page_html(page, pages, PageVisit(home, stages, request.query_params))
        return HTMLResponse(html, headers={"Refresh": str(REFRESH_S)} if live else {})

    return endpoint


def _refused_or_redirected(request: Request, token: str, paths: Collection[str]) -> Response | None:
    """Returns a redirect that sets the cookie if the address has the token; None if the cookie is valid; 401 otherwise.

    Args:
        request: The request.
        token: The secret.
        paths: Paths of the pages. A redirect from any other path leads to "/".
    """
    from fastapi.responses import PlainTextResponse, RedirectResponse

    cookie = f"loam-{sha256(token.encode()).hexdigest()[:12]}"  # all ports share cookies: two dashboards need two cookie names
    if _equal(request.query_params.get("token", ""), token):
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        path = request.url.path if request.url.path in paths else "/"
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
        answer.set_cookie(cookie, token, httponly=True, samesite="strict")
        return answer
    return None if _equal(request.cookies.get(cookie, ""), token) else PlainTextResponse(CLOSED, status_code=401)


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), token.encode())  # constant time, so that timing reveals nothing


def serve(home: Path, stages: Mapping[str, Stage], port: int, announce: Callable[[str], None]) -> None:
    """Serves the dashboard until interrupted or terminated, and then returns. A port in use is refused.

    Args:
        home: The home folder.
        stages: Node -> its stage, in pipeline order.
        port: The port of 127.0.0.1; 0 takes a free one.
        announce: Called once with the URL to open.
    """
    import uvicorn

    token = secrets.token_urlsafe(32)
    with suppress(KeyboardInterrupt), termination_raises(KeyboardInterrupt), bound(port) as listener:
        listener.listen()  # a browser that opens the URL before the server is up waits and is not refused
        announce(f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}")
        config = uvicorn.Config(make_app(home, stages, token), log_level="warning", h11_max_incomplete_event_size=MAX_HEAD_BYTES)
        uvicorn.Server(config).run(sockets=[listener])  # after SIGTERM it ends its requests, and then raises the signal again


def bound(port: int) -> socket.socket:
    """Returns a socket bound to a port of 127.0.0.1.

    Raises:
        StageError: The port is in use.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise StageError(
            f"Port {port} is taken.", where="127.0.0.1", do="Stop the program that uses it, or choose another port with --port."
        ) from None
    return listener
