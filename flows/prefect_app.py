"""Prefect's application as uvicorn serves it for Loam: closed to whoever has no authentication string or comes under another name.

Guarantee: without PREFECT_SERVER_API_AUTH_STRING it does not start. With it, Prefect answers 401 to every HTTP request of its API but
the health checks, and closes every WebSocket whose first message is not the string. Host is checked for HTTP and WebSockets alike
(dashboards/guard.py), and the pages and schema of FastAPI's documentation, which stand outside Prefect's authentication, are not
served. What needs none: /api/health, /api/ready, and the UI's files, which hold nothing of the home.
Source: prefect.server.api.server of Prefect 3.8; with authentication alone it answers any Host and serves /docs and /openapi.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.guard import local_only
from stages.core.contract.errors import StageError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp


def create_app() -> ASGIApp:
    """The application; settings come from the environment, as `flows.prefect_server.start_server` gives them."""
    from fastapi import FastAPI
    from prefect.server.api.server import create_app as prefects
    from prefect.settings import get_current_settings
    from starlette.routing import Mount

    auth = get_current_settings().server.api.auth_string
    if auth is None or not auth.get_secret_value():
        do = "Start it by `loam serve`, or set PREFECT_SERVER_API_AUTH_STRING (user:password)."
        raise StageError("The Prefect server has no authentication string.", where="PREFECT_SERVER_API_AUTH_STRING", do=do)
    app = prefects()
    mounted = [route.app for route in app.router.routes if isinstance(route, Mount)]
    for part in (app, *mounted):
        if isinstance(part, FastAPI):
            _close_documentation(part)
    return local_only(app)


def _close_documentation(app: FastAPI) -> None:
    pages = {app.docs_url, app.redoc_url, app.openapi_url, app.swagger_ui_oauth2_redirect_url}
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in pages]
