"""Streams that outlive their connection: the bytes of an event stream, kept so that a client can come back for them.

Sizes and times are the documented ones: 4 MiB a stream (the oldest bytes go first), 300 s after the end, at most 256
finished streams. Streams belong to the holder of one API key.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from mlxcel.core.errors import InvalidRequest

MAX_STREAM_BYTES = 4 * 2**20
KEEP_FINISHED_S = 300.0
MAX_FINISHED = 256


class StreamOffsetLost(InvalidRequest):
    """The offset asked for was dropped from the front, or lies beyond the end. The message is documented."""

    def __init__(self) -> None:
        super().__init__("Stream offset lost, please restart", param="from")


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream as the lookup route shows it; times are Unix seconds, ``completed_s`` None while it runs."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_s: float
    completed_s: float | None


class StreamSession:
    """The bytes of one stream. For the event loop's thread only."""

    def __init__(self, conversation_id: str, *, max_bytes: int = MAX_STREAM_BYTES) -> None:
        self.conversation_id = conversation_id
        self.started_s = time.time()
        self.completed_s: float | None = None
        self.cancel: Callable[[], None] = lambda: None  # ends the work behind the stream
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._dropped_bytes = 0
        self._news = asyncio.Event()

    @property
    def is_done(self) -> bool:
        return self.completed_s is not None

    @property
    def total_bytes(self) -> int:
        """Bytes written so far, those dropped included."""
        return self._dropped_bytes + len(self._buffer)

    def write(self, frames: bytes) -> None:
        """Append; the oldest bytes go when there are too many."""
        self._buffer += frames
        excess = len(self._buffer) - self._max_bytes
        if excess > 0:
            del self._buffer[:excess]
            self._dropped_bytes += excess
        self._wake()

    def finish(self) -> None:
        """No more bytes will come; may be called again."""
        if self.completed_s is None:
            self.completed_s = time.time()
            self._wake()

    def check_offset(self, offset: int) -> None:
        """
        Raises:
            StreamOffsetLost: the byte at ``offset`` is not there any more, or the offset is beyond the end.
        """
        if not self._dropped_bytes <= offset <= self.total_bytes:
            raise StreamOffsetLost

    async def follow(self, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """The bytes from ``offset`` on, then those that come, until the end.

        A reader that is so slow that bytes it has not read were dropped is ended early.
        """
        while self._dropped_bytes <= offset:
            news = self._news
            piece = bytes(self._buffer[offset - self._dropped_bytes :])
            if piece:
                offset += len(piece)
                yield piece
            elif self.is_done:
                return
            else:
                await news.wait()

    def status(self) -> StreamStatus:
        return StreamStatus(self.conversation_id, self.is_done, self.total_bytes, self.started_s, self.completed_s)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class StreamStore:
    """Sessions by tenant and conversation id.

    Args:
        clock: Unix seconds.
    """

    def __init__(
        self,
        *,
        keep_finished_s: float = KEEP_FINISHED_S,
        max_finished: int = MAX_FINISHED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keep_finished_s = keep_finished_s
        self._max_finished = max_finished
        self._clock = clock
        self._sessions: OrderedDict[tuple[str, str], StreamSession] = OrderedDict()

    def begin(self, tenant: str, conversation_id: str) -> StreamSession:
        """A new session; one that the conversation still had is ended and replaced."""
        self.remove(tenant, conversation_id)
        session = StreamSession(conversation_id)
        self._sessions[tenant, conversation_id] = session
        self._sweep()
        return session

    def get(self, tenant: str, conversation_id: str) -> StreamSession | None:
        """The conversation's session, running or finished not long ago."""
        self._sweep()
        return self._sessions.get((tenant, conversation_id))

    def lookup(self, tenant: str, conversation_ids: Sequence[str]) -> list[StreamStatus]:
        """The sessions that exist, in the order asked for."""
        found = (self.get(tenant, conversation_id) for conversation_id in conversation_ids)
        return [session.status() for session in found if session is not None]

    def remove(self, tenant: str, conversation_id: str) -> None:
        """End and forget a session; unknown ones are ignored."""
        session = self._sessions.pop((tenant, conversation_id), None)
        if session is not None:
            session.cancel()
            session.finish()

    def close(self) -> None:
        """End every session."""
        for tenant, conversation_id in list(self._sessions):
            self.remove(tenant, conversation_id)

    def _sweep(self) -> None:
        now_s = self._clock()
        finished = [(session.completed_s, key) for key, session in self._sessions.items() if session.completed_s is not None]
        finished.sort()
        excess = len(finished) - self._max_finished
        for number, (completed_s, key) in enumerate(finished):
            if number < excess or now_s - completed_s > self._keep_finished_s:
                del self._sessions[key]
