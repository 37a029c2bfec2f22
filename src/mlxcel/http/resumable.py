"""Streams with ``X-Conversation-Id``: the generation writes into a session, and connections read from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from mlxcel.http.call import Call
from mlxcel.http.sse import EventStream
from mlxcel.stores.streams import StreamSession

_MAX_ID_CHARS = 256


def conversation_id(call: Call) -> str | None:
    """The id in the header, when the client wants a stream that survives its connection."""
    value = call.request.headers.get("x-conversation-id", "").strip()
    return value[:_MAX_ID_CHARS] or None


def resumable_stream(
    call: Call,
    conversation: str,
    frames: AsyncIterator[bytes],
    close: Callable[[], Coroutine[Any, Any, None]],
    keep_alive: bytes,
    headers: dict[str, str] | None = None,
) -> EventStream:
    """An event stream whose generation goes on when the client leaves."""
    session = call.rooms.streams.begin(call.tenant, conversation)
    task = asyncio.ensure_future(_record(session, frames))
    task.add_done_callback(lambda _: asyncio.ensure_future(close()))  # also when it was cancelled before its first step

    def cancel() -> None:
        task.cancel()

    session.cancel = cancel
    return follow_stream(call, session, 0, keep_alive, headers)


def follow_stream(
    call: Call, session: StreamSession, offset: int, keep_alive: bytes, headers: dict[str, str] | None = None
) -> EventStream:
    """Replay a session from ``offset`` and follow it to its end. Leaving changes nothing for the session."""
    frames = session.follow(offset)
    return EventStream(
        frames, close=frames.aclose, keep_alive=keep_alive, ping_interval_s=call.rooms.ping_interval_s, headers=headers
    )


async def _record(session: StreamSession, frames: AsyncIterator[bytes]) -> None:
    try:
        async for frame in frames:
            if frame:
                session.write(frame)
    finally:
        session.finish()
