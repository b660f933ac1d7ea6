"""Who may talk to a server of ours: a client that names it as this machine does.

Guarantee: a request or WebSocket whose Host is missing or is not 127.0.0.1, localhost or [::1] (any port) gets 400. A web page
elsewhere that points its own name at 127.0.0.1 (DNS rebinding) so reaches nothing, even where a browser holds a credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def local_only(app: ASGIApp) -> ASGIApp:
    """The application behind the check of the Host."""
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    return TrustedHostMiddleware(app, allowed_hosts=LOCAL_HOSTS, www_redirect=False)
