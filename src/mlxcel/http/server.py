"""The ASGI application and the server that runs it."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as AsgiRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxcel.core.errors import InvalidRequest, NotFound
from mlxcel.http.auth import AuthMiddleware, KeyRing
from mlxcel.http.call import Call
from mlxcel.http.endpoint import endpoint
from mlxcel.http.guards import HostGuard
from mlxcel.http.openapi import docs_page, openapi_document
from mlxcel.http.responses import JsonResponse, error_response
from mlxcel.http.rooms import Rooms
from mlxcel.http.route import Route
from mlxcel.wire.errors import error_body

log = logging.getLogger(__name__)

_PROBES = ("/health", "/", "/metrics")  # asked every few seconds; not worth a line each
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def build_asgi(
    rooms: Rooms,
    routes: Sequence[Route],
    *,
    keys: KeyRing,
    cors: Middleware,
    guard_host: bool,
    prefix: str = "",
    lifespan: Lifespan | None = None,
) -> Starlette:
    """The application: request id and access log, host guard, CORS (preflights need no key), authentication, routes."""
    guards = [Middleware(HostGuard)] if guard_host else []
    table = (*routes, *_description(routes, prefix))
    return Starlette(
        routes=[
            AsgiRoute(prefix + path, endpoint(route, rooms), methods=[route.method])
            for route in table
            for path in route.paths
        ],
        middleware=[
            Middleware(RequestLog),
            *guards,
            cors,
            Middleware(AuthMiddleware, keys=keys, routes=table, prefix=prefix),
        ],
        exception_handlers={404: _not_found, 405: _wrong_method},
        lifespan=lifespan,
    )


def _description(routes: Sequence[Route], prefix: str) -> tuple[Route, ...]:
    """The routes that describe the others."""
    page = docs_page(routes, prefix=prefix)

    @functools.cache
    def document() -> dict[str, Any]:
        return openapi_document(routes, prefix=prefix)

    async def openapi_json(call: Call) -> Response:
        # Schemas of all request models take a tenth of a second: made when asked for, and off the event loop.
        return JsonResponse(await asyncio.to_thread(document))

    async def docs(call: Call) -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    return (
        Route("GET", "/openapi.json", openapi_json, "The OpenAPI document"),
        Route("GET", "/docs", docs, "This page", media_type="text/html"),
    )


async def _not_found(request: Request, error: Exception) -> Response:
    return error_response(NotFound(f"there is no route {request.method} {request.url.path[:200]}"))


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    body = error_body(InvalidRequest(f"{request.method} is not served on {request.url.path[:200]}"))
    return JsonResponse(body, 405, headers)


class RequestLog:
    """Gives each request an id (``x-request-id``) and writes one access line when it has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope["request_id"] = request_id
        started_s = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            elapsed_ms = (time.perf_counter() - started_s) * 1000
            level = logging.DEBUG if scope["path"] in _PROBES else logging.INFO
            log.log(level, "%s %s %d in %.1f ms [%s]", scope["method"], scope["path"], status, elapsed_ms, request_id)


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key files in PEM form."""

    cert_file: str
    key_file: str


def uvicorn_config(
    app: Starlette, *, timeout_s: int, backlog: int = 2048, shutdown_grace_s: int = 10, tls: Tls | None = None
) -> uvicorn.Config:
    """Settings of the web server; its own logs are off because :class:`RequestLog` writes them."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=backlog,
        timeout_keep_alive=min(timeout_s, 75),
        timeout_graceful_shutdown=shutdown_grace_s,
        lifespan="on",
        ssl_certfile=tls.cert_file if tls is not None else None,
        ssl_keyfile=tls.key_file if tls is not None else None,
    )


class QuietServer(uvicorn.Server):
    """Ends with exit code 0 when it is told to stop; uvicorn itself would raise the signal again after the shutdown."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


class SideServer(uvicorn.Server):
    """A second listener of the same process; the first one's signals stop it too."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Side:
    """A further application on a bound socket of its own."""

    app: Starlette
    listener: socket.socket


class ReadyModel(Protocol):
    """What the server waits for before it says that it is ready."""

    async def wait_ready(self) -> None:
        """Return when the model has loaded. Raises StartupError when it cannot."""


async def serve(
    app: Starlette,
    listener: socket.socket,
    model: ReadyModel,
    *,
    timeout_s: int,
    on_ready: Callable[[], None],
    tls: Tls | None = None,
    side: Side | None = None,
) -> int:
    """Serve on a bound socket until a signal comes; requests are answered (503) from the first moment.

    Args:
        side: served beside it in plain HTTP, and stopped with it.

    Raises:
        StartupError: the model could not be loaded.
    """
    server = QuietServer(uvicorn_config(app, timeout_s=timeout_s, tls=tls))
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    beside = SideServer(uvicorn.Config(side.app, log_config=None, access_log=False, lifespan="off")) if side else None
    beside_running = asyncio.ensure_future(beside.serve(sockets=[side.listener])) if beside and side else None
    try:
        ready = asyncio.ensure_future(model.wait_ready())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not running.done():
            ready.result()
            on_ready()
        ready.cancel()
    finally:
        if not running.done() and sys.exc_info()[0] is not None:
            server.should_exit = True
        await running
        if beside is not None and beside_running is not None:
            beside.should_exit = True
            await beside_running
    return 0
