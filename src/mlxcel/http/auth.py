"""API keys: compared in constant time, before routing, so that an unknown path tells nothing either."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxcel.core.errors import AuthError, InvalidKey, MissingKey
from mlxcel.http.responses import Dialect, error_response
from mlxcel.http.route import Route


class KeyRing:
    """The accepted keys, kept as digests only."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys if key)

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def tenant_of(self, presented: str | None) -> str:
        """A stable name for the key's holder, safe to log and to key caches with.

        Raises:
            MissingKey: nothing was presented.
            InvalidKey: not one of the keys.
        """
        if not presented:
            raise MissingKey("no API key was sent; set the header Authorization: Bearer <key>")
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # every key, whatever matches first
        if not any(matches):
            raise InvalidKey("the API key sent is not valid")
        return hashlib.sha256(b"tenant" + digest).hexdigest()[:16]


def presented_key(headers: Headers, *, accepts_x_api_key: bool) -> str | None:
    """The key in ``Authorization`` (with or without ``Bearer``), or in ``x-api-key`` where that is allowed."""
    value = headers.get("authorization", "").strip()
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "bearer":
        value = rest.strip()
    if value:
        return value
    return headers.get("x-api-key", "").strip() or None if accepts_x_api_key else None


class AuthMiddleware:
    """Lets a request through when its route is open or it carries a key; sets ``scope["tenant"]``."""

    def __init__(self, app: ASGIApp, *, keys: KeyRing, routes: Sequence[Route], prefix: str = "") -> None:
        self._app = app
        self._keys = keys
        self._open = {
            (method, prefix + path)
            for route in routes
            if route.open
            for path in route.paths
            for method in _methods(route.method)
        }
        self._patterns = [
            (compile_path(prefix + path)[0], route)
            for route in routes
            if route.accepts_x_api_key or route.dialect != "openai"
            for path in route.paths
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.required or (scope["method"], scope["path"]) in self._open:
            await self._app(scope, receive, send)
            return
        dialect, accepts_x_api_key = self._manners(scope["path"])
        try:
            key = presented_key(Headers(scope=scope), accepts_x_api_key=accepts_x_api_key)
            scope["tenant"] = self._keys.tenant_of(key)
        except AuthError as error:
            await error_response(error, dialect)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _manners(self, path: str) -> tuple[Dialect, bool]:
        route = next((route for pattern, route in self._patterns if pattern.match(path)), None)
        return ("openai", False) if route is None else (route.dialect, route.accepts_x_api_key)


def _methods(method: str) -> tuple[str, ...]:
    return ("GET", "HEAD") if method == "GET" else (method,)
