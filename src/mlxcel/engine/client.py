"""The only door to an engine: reserve a place, submit a work, read its events.

Everything here belongs to the event loop's thread. A place is reserved before a response is begun, so that an overloaded
server can still answer with an error; it is given back exactly once, when the work has ended in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from mlxcel.core.errors import GenerationFailed, MemoryBudgetExceeded, ModelLoading, ServerBusy, TimedOut
from mlxcel.core.events import EngineEvent, Failed, Finished
from mlxcel.core.jobs import Priority
from mlxcel.core.ports import ModelInfo, ModelRunner
from mlxcel.core.work import GenerateWork
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.generation import GenerationRunner, slot_context_tokens
from mlxcel.engine.stats import EngineCounters, EngineStats, SlotStatus, make_stats
from mlxcel.engine.stream import EventStream
from mlxcel.engine.worker import Worker, WorkerState
from mlxcel.prefix_cache.stats import CacheContents
from mlxcel.prefix_cache.stats import make_stats as make_cache_stats

log = logging.getLogger(__name__)

T = TypeVar("T")

_LATE_CHECKS = 4  # looks at the streams per decode timeout


class Reservation:
    """A place in the engine for one work. A context manager; leaving it gives back a place that was not used."""

    def __init__(self, client: EngineClient, priority: Priority) -> None:
        self.priority = priority
        self._client = client
        self._held = True
        self._submitted = False

    def release(self) -> None:
        """Give the place back; once a work was submitted with it, the engine does. May be called again."""
        if not self._submitted:
            self._give_back()

    def use(self) -> None:
        """Mark the place as taken by a submitted work. Raises ValueError when it was used or released before."""
        if self._submitted or not self._held:
            raise ValueError("the reservation was already used or released")
        self._submitted = True

    def work_ended(self) -> None:
        """The submitted work has ended in the engine."""
        self._give_back()

    def _give_back(self) -> None:
        if self._held:
            self._held = False
            self._client.places_taken -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class EngineClient:
    """Reaches the engine of one model.

    Args:
        load_model: builds the model runner; called on the owner thread, again after each sleep.
        load_draft: builds the runner of a draft model, after that; None for none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        load_model: Callable[[], ModelRunner],
        config: EngineConfig,
        *,
        load_draft: Callable[[], ModelRunner] | None = None,
        name: str = "model",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.places_taken = 0  # reserved, waiting or running
        self._config = config
        self._streams: dict[str, tuple[EventStream, Reservation]] = {}
        self._info: ModelInfo | None = None
        self._counters = EngineCounters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.TimerHandle | None = None

        def build() -> GenerationRunner:
            model = load_model()
            draft_model = load_draft() if load_draft is not None else None
            runner = GenerationRunner(model, config, draft_model=draft_model, counters=self._counters, clock=clock)
            self._info = runner.info
            return runner

        self._worker = Worker(build, name=name, sleep_idle_s=config.sleep_idle_s, clock=clock)

    def start(self) -> None:
        """Begin loading the model. Call it from the event loop that will read the streams."""
        self._loop = asyncio.get_running_loop()
        self._worker.start(self._deliver)

    async def wait_ready(self) -> None:
        """Wait until the model is loaded.

        Raises:
            StartupError: it could not be loaded.
        """
        await asyncio.shield(asyncio.wrap_future(self._worker.ready))

    async def close(self) -> None:
        """End every work with ``Failed`` and free the model."""
        await asyncio.to_thread(self._worker.close)

    @property
    def state(self) -> WorkerState:
        return self._worker.state

    @property
    def info(self) -> ModelInfo:
        """The model, also while it sleeps. Raises ModelLoading before the first load is done."""
        if self._info is None:
            raise ModelLoading()
        return self._info

    @property
    def context_tokens(self) -> int:
        """Window of one work, prompt and answer together. Raises ModelLoading before the first load is done."""
        return slot_context_tokens(self.info, self._config)

    def reserve(self, priority: Priority = Priority.NORMAL) -> Reservation:
        """Take a place for one work, at once or not at all.

        Raises:
            ServerBusy: every slot and every queue place is taken.
            ModelLoading: the model is not ready.
            GenerationFailed: the engine has stopped.
        """
        state = self._worker.state
        if state is WorkerState.LOADING:
            raise ModelLoading()
        if state in (WorkerState.FAILED, WorkerState.CLOSED):
            raise GenerationFailed("the engine has stopped and takes no more work; restart the server")
        if self.places_taken >= self._slots() + self._config.max_queue_depth:
            raise ServerBusy()
        self.places_taken += 1
        return Reservation(self, priority)

    def check_memory(self, prompt_tokens: int, max_tokens: int) -> None:
        """Refuse a work whose worst case can never fit.

        Raises:
            MemoryBudgetExceeded: it needs more KV memory than one work may have.
        """
        info = self.info
        tokens = min(prompt_tokens + max_tokens, self.context_tokens)
        estimated_bytes = tokens * info.bytes_per_token + info.state_bytes
        budget_bytes = self._config.request_memory_budget_bytes
        if budget_bytes is not None and estimated_bytes > budget_bytes:
            raise MemoryBudgetExceeded(estimated_bytes, budget_bytes)

    def submit(self, reservation: Reservation, work: GenerateWork) -> EventStream:
        """Start a work in a reserved place and return its events.

        Raises:
            MemoryBudgetExceeded: see :meth:`check_memory`; the place is still the caller's.
            ValueError: the reservation was used before, or the id belongs to a live work.
        """
        if work.id in self._streams:
            raise ValueError(f"the id {work.id} belongs to a live work")
        self.check_memory(len(work.prompt_ids), work.max_tokens)
        reservation.use()
        stream = EventStream(work.id, self._worker.cancel)
        self._streams[work.id] = (stream, reservation)
        self._watch_streams()
        self._worker.submit(work)
        return stream

    def stats(self) -> EngineStats:
        """Counters and slots of now, also while the model sleeps. Raises ModelLoading before the first load is done."""
        runner = self._worker.runner
        if runner is not None:
            return runner.stats()
        return make_stats(self._counters, [SlotStatus(place, "idle") for place in range(self._slots())])

    def cache_stats(self) -> dict[str, Any]:
        """Statistics of the prefix cache under their documented names. Raises ModelLoading before the first load is done."""
        runner = self._worker.runner
        if runner is not None:
            return runner.cache_stats().as_dict()
        return self._empty_cache_stats()

    async def cache_reset(self) -> dict[str, Any]:
        """Empty the prefix cache and return what its statistics were. May be called again.

        Raises:
            ModelLoading: before the first load is done.
        """
        if self._worker.runner is None:
            return self._empty_cache_stats()
        return (await self.run_exclusive(GenerationRunner.reset_cache)).as_dict()

    async def end_thinking(self, work_id: str) -> bool:
        """End the thinking of a work, of all its choices; False when none is live or it may not be ended."""
        if not any(name == work_id or name.startswith(f"{work_id}-") for name in self._streams):
            return False
        return await self.run_exclusive(lambda runner: runner.end_thinking(work_id))

    async def run_exclusive(self, function: Callable[[GenerationRunner], T]) -> T:
        """Run ``function`` on the owner thread between two steps and return its result. Wakes a sleeping model."""
        return await asyncio.wrap_future(self._worker.call(function))

    def _empty_cache_stats(self) -> dict[str, Any]:
        """A sleeping model has no cache; its sums go on."""
        return make_cache_stats(
            self._config.cache, self._counters.cache, CacheContents(), block_tokens=self.info.block_tokens,
            capacity_bytes=0 if self._config.cache.capacity_bytes is None else self._config.cache.capacity_bytes,
        ).as_dict()

    def _slots(self) -> int:
        return min(self._config.max_rows, self.info.max_rows)

    def _deliver(self, events: Sequence[EngineEvent]) -> None:
        """Owner thread: one wake-up of the loop for everything that happened in a step."""
        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._dispatch, events)
            except RuntimeError:  # the loop was closed in between; nobody is left to read
                return

    def _watch_streams(self) -> None:
        """Look for late streams from time to time, for as long as there are any streams."""
        if self._watch is None and self._streams and self._loop is not None:
            self._watch = self._loop.call_later(self._config.decode_timeout_s / _LATE_CHECKS, self._end_late_streams)

    def _end_late_streams(self) -> None:
        """Cancel works whose next token is overdue."""
        self._watch = None
        limit_s = self._config.decode_timeout_s
        for stream, _ in self._streams.values():
            if stream.is_late(limit_s):
                log.warning("work %s produced no token for %g s and was ended", stream.work_id, limit_s)
                stream.cancel()
                stream.push(Failed(stream.work_id, TimedOut("the request produced no token for too long")))
        self._watch_streams()

    def _dispatch(self, events: Sequence[EngineEvent]) -> None:
        streams = self._streams
        for event in events:
            entry = streams.get(event.id)
            if entry is None:
                continue
            stream, reservation = entry
            stream.push(event)
            if isinstance(event, (Finished, Failed)):
                del streams[event.id]
                reservation.work_ended()
