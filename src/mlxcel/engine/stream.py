"""The events of one work, on their way from the owner thread to one asyncio reader."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mlxcel.core.events import EngineEvent, Failed, Finished, TokenLogprob, Tokens

_WAITING_EVENTS = 64  # events kept apart for a slow reader; what comes after is merged into one


class EventStream:
    """Async iterator over a work's events; it ends after the terminal one. For one reader, on the event loop's thread.

    A reader that falls behind gets the tokens it missed as one :class:`Tokens` event, so the memory held for it stays
    bounded by the work's own tokens. Leave it with :meth:`aclose` (or ``async with``): a stream that is left early cancels
    its work.
    """

    def __init__(self, work_id: str, cancel: Callable[[str], None]) -> None:
        self.work_id = work_id
        self._cancel = cancel
        self._waiting: deque[EngineEvent] = deque()
        self._merged_ids: list[int] = []
        self._merged_logprobs: list[TokenLogprob] = []
        self._terminal: Finished | Failed | None = None
        self._reader: asyncio.Future[None] | None = None
        self._exhausted = False
        self._cancelled = False
        self._last_token_s: float | None = None

    def push(self, event: EngineEvent) -> None:
        """Take the next event. Called by the client, on the event loop's thread."""
        if self._exhausted or self._terminal is not None:
            return
        if isinstance(event, (Finished, Failed)):
            self._terminal = event
        else:
            if isinstance(event, Tokens):
                self._last_token_s = time.monotonic()
            self._append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def is_late(self, limit_s: float) -> bool:
        """True when the next token takes longer than ``limit_s``. The first one may take as long as it likes."""
        if self._exhausted or self._terminal is not None or self._last_token_s is None:
            return False
        return time.monotonic() - self._last_token_s > limit_s

    def cancel(self) -> None:
        """Ask the engine to end the work; its terminal event still comes."""
        if not self._cancelled and self._terminal is None:
            self._cancelled = True
            self._cancel(self.work_id)

    async def aclose(self) -> None:
        """Leave the stream; cancels the work if it is still running. May be called again."""
        self.cancel()
        self._exhausted = True
        self._waiting.clear()
        self._merged_ids.clear()
        self._merged_logprobs.clear()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EngineEvent:
        while True:
            if self._exhausted:
                raise StopAsyncIteration
            event = self._pop()
            if event is not None:
                return event
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _append(self, event: EngineEvent) -> None:
        if isinstance(event, Tokens) and (self._merged_ids or len(self._waiting) >= _WAITING_EVENTS):
            self._merged_ids += event.token_ids
            self._merged_logprobs += event.logprobs
        else:
            self._waiting.append(event)

    def _pop(self) -> EngineEvent | None:
        if self._waiting:
            return self._waiting.popleft()
        if self._merged_ids:
            event = Tokens(self.work_id, tuple(self._merged_ids), tuple(self._merged_logprobs))
            self._merged_ids.clear()
            self._merged_logprobs.clear()
            return event
        if self._terminal is not None:
            self._exhausted = True
            return self._terminal
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
