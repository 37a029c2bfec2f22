"""Who may talk to the server at all: the Host header on loopback binds, and origins of browser pages."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxcel.http.faults import ForeignHost
from mlxcel.http.responses import error_response

LOOPBACK_ORIGINS = r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?"
EXPOSED_HEADERS = ("x-request-id", "x-mlxcel-ignored", "retry-after")


def is_loopback(host: str) -> bool:
    """True for localhost, loopback addresses and Unix socket paths."""
    if host.endswith(".sock"):
        return True
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class HostGuard:
    """Refuses requests whose Host is not this machine, so that a web page cannot reach a loopback server by DNS rebinding.

    Requests over a Unix socket are let through: a browser cannot open one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("client") is not None:
            host = Headers(scope=scope).get("host", "")
            if not is_loopback(_without_port(host)):
                error = ForeignHost("the Host header does not name this machine; use localhost or 127.0.0.1")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host


def cors_middleware(
    *, origins: Sequence[str], methods: Sequence[str], headers: Sequence[str], credentials: bool
) -> Middleware:
    """CORS for browser pages. No origins given: pages served from this machine only, whatever their port."""
    allowed: dict[str, Any] = {"allow_origins": list(origins)} if origins else {"allow_origin_regex": LOOPBACK_ORIGINS}
    return Middleware(
        CORSMiddleware,
        **allowed,
        allow_methods=list(methods),
        allow_headers=list(headers),
        allow_credentials=credentials and "*" not in origins,
        expose_headers=list(EXPOSED_HEADERS),
        max_age=600,
    )
