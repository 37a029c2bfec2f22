"""Event streams: headers at once, keep-alives while nothing else is sent, and the end of the work when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",  # reverse proxies must pass each frame on
}


class EventStream(Response):
    """Sends the frames of an async iterator.

    Args:
        frames: the frames, in order.
        close: awaited once in every case, even when the first byte could not be sent; it ends the work behind the frames.
        keep_alive: the frame sent after ``ping_interval_s`` of silence.
        ping_interval_s: None sends no keep-alives.
    """

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        *,
        close: Callable[[], Awaitable[None]],
        keep_alive: bytes,
        ping_interval_s: float | None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status_code=200, headers=HEADERS | (headers or {}))
        del self.headers["content-length"]
        self._frames = frames
        self._close = close
        self._keep_alive = keep_alive
        self._interval_s = ping_interval_s
        self._last_sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the frames end or the client leaves."""
        loop = asyncio.get_running_loop()
        pump = asyncio.ensure_future(self._pump(send, loop.time))
        helpers = [asyncio.ensure_future(_until_disconnect(receive))]
        if self._interval_s is not None:
            helpers.append(asyncio.ensure_future(self._ping(send, loop.time, self._interval_s)))
        try:
            await asyncio.wait([pump, *helpers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, *helpers):
                task.cancel()
            results = await asyncio.gather(pump, *helpers, return_exceptions=True)
            await self._close()
        if isinstance(results[0], Exception) and not isinstance(results[0], OSError):
            raise results[0]

    async def _pump(self, send: Send, now: Callable[[], float]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._last_sent_s = now()
        async for frame in self._frames:
            if frame:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._last_sent_s = now()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send, now: Callable[[], float], interval_s: float) -> None:
        self._last_sent_s = now()
        while True:
            await asyncio.sleep(max(self._last_sent_s + interval_s - now(), 0.01))
            if now() - self._last_sent_s >= interval_s:
                await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
                self._last_sent_s = now()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Awaitable[Response]) -> Response | None:
    """Await ``work``; cancel it and return None when the client leaves first.

    Starlette's own disconnect check only answers when asked, so a non-streaming request needs a watcher of its own.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait([task, watcher], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
