"""Protects Loam's servers against DNS rebinding: a request must name this machine in its Host header.

Guarantee: a request or WebSocket whose Host is missing or is not 127.0.0.1, localhost or [::1] (any port) gets 400. So a web page
of another site whose name resolves to 127.0.0.1 reaches nothing, even if the browser holds a credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def local_only(app: ASGIApp) -> ASGIApp:
    """Returns the application with a check of the Host header in front of it."""
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    return TrustedHostMiddleware(app, allowed_hosts=LOCAL_HOSTS, www_redirect=False)
