"""Makes the Prefect application that uvicorn serves for Loam: it requires the authentication string and a Host name of this machine.

Guarantee: without PREFECT_SERVER_API_AUTH_STRING it does not start. With it, Prefect answers 401 to every API request over HTTP without
the string, except for the health checks. It closes every WebSocket whose first message is not the string. The Host header is checked for
HTTP and WebSockets (dashboards/guard.py). The pages and the schema of FastAPI's documentation, which Prefect's authentication does not
cover, are not served. Only /api/health, /api/ready and the files of the UI need no authentication; they contain no data of the home.
Source: prefect.server.api.server of Prefect 3.8. With authentication alone it answers any Host and serves /docs and /openapi.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.guard import local_only
from stages.record.contract.errors import StageError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp


def create_app() -> ASGIApp:
    """Makes the application. Its settings come from the environment that `flows.prefect_server.start_server` sets.

    Returns:
        The application.

    Raises:
        StageError: the environment has no authentication string.
    """
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
