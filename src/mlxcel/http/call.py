"""One HTTP request on its way through a route."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request

from mlxcel.core.errors import Cancelled, PayloadTooLarge, TimedOut
from mlxcel.core.jobs import Priority
from mlxcel.http.faults import UnsupportedMediaType
from mlxcel.wire.context import RequestContext, parse_priority

if TYPE_CHECKING:
    from mlxcel.http.rooms import Rooms

_JSON_TYPES = ("application/json", "application/problem+json", "text/json")


class Call:
    """A request with the rooms it may use.

    Attributes:
        request: the ASGI request.
        rooms: the object graph of the server.
        id: bare unique id; dialects put their prefix before it.
        created_s: Unix time of arrival.
    """

    def __init__(self, request: Request, rooms: Rooms) -> None:
        self.request = request
        self.rooms = rooms
        self.id: str = request.scope.get("request_id") or uuid.uuid4().hex
        self.created_s = time.time()

    @property
    def context(self) -> RequestContext:
        """What the wire modules may know about this request."""
        return RequestContext(
            facts=self.rooms.facts,
            request_id=self.id,
            created_s=self.created_s,
            priority=self._priority(),
            cache_scope="" if self.rooms.shares_cache else self.tenant,
        )

    @property
    def tenant(self) -> str:
        """Who sent the request, derived from the API key; empty when the server has no keys."""
        name: str = self.request.scope.get("tenant", "")
        return name

    def _priority(self) -> Priority:
        header = self.request.headers.get("x-priority")
        priority = parse_priority(header)
        if priority is None:
            self.rooms.log_once("priority", "unknown X-Priority value counts as normal")
            return Priority.NORMAL
        return priority

    async def json_bytes(self) -> bytes:
        """The body of a JSON route, read under the size limit.

        Raises:
            UnsupportedMediaType: a declared content type that is not JSON; browsers may send those across origins.
            PayloadTooLarge: more than the limit, told while reading.
            Cancelled: the client left while sending.
        """
        declared = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if declared and declared not in _JSON_TYPES:
            raise UnsupportedMediaType("the request body must be JSON; send the header Content-Type: application/json")
        return await self.body()

    async def body(self) -> bytes:
        """The raw body under the size limit; see :meth:`json_bytes` for the errors."""
        limit = self.rooms.max_body_bytes
        length = self.request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise PayloadTooLarge(f"the request body is larger than {limit} bytes")
        chunks: list[bytes] = []
        received = 0
        try:
            async with asyncio.timeout(self.rooms.read_timeout_s):
                async for chunk in self.request.stream():
                    received += len(chunk)
                    if received > limit:
                        raise PayloadTooLarge(f"the request body is larger than {limit} bytes")
                    chunks.append(chunk)
        except ClientDisconnect:
            raise Cancelled from None
        except TimeoutError:
            raise TimedOut("the request body took too long to arrive") from None
        return b"".join(chunks)
