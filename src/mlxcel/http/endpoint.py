"""Runs a route's handler: errors become the dialect's bodies, and a client that left ends the work."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from mlxcel.core.errors import Cancelled, MlxcelError
from mlxcel.http.call import Call
from mlxcel.http.responses import error_response
from mlxcel.http.rooms import Rooms
from mlxcel.http.route import Route
from mlxcel.http.sse import unless_disconnected

log = logging.getLogger(__name__)


class InternalFault(MlxcelError):
    """An unknown exception; its text stays in the log."""

    def __init__(self) -> None:
        super().__init__("internal server error; the log has the details under this request's id", code="internal_error")


CLIENT_CLOSED = 499


def endpoint(route: Route, rooms: Rooms) -> Callable[[Request], Awaitable[Response]]:
    """The ASGI-side function of a route."""

    async def run(request: Request) -> Response:
        call = Call(request, rooms)
        try:
            return await route.handler(call)
        except Cancelled:
            return Response(status_code=CLIENT_CLOSED)
        except MlxcelError as error:
            return error_response(error, route.dialect)
        except Exception:
            log.exception("request %s to %s failed", call.id, route.path)
            return error_response(InternalFault(), route.dialect)

    return run


async def answer_or_cancel(call: Call, work: Awaitable[Response]) -> Response:
    """Await a non-streaming answer; the client's leaving cancels it.

    Raises:
        Cancelled: the client left first.
    """
    response = await unless_disconnected(call.request.receive, work)
    if response is None:
        raise Cancelled
    return response
