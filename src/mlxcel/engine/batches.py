"""Concurrent requests to one model share its forward passes.

A request is a list of rows. The event loop owns the queue: it takes rows of as many requests as fit into a batch, gives
every request its turn, and hands batches to the model's owner thread, at most two at a time so that the thread never waits
for the loop. The owner thread alone builds, runs and frees the model.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Generic, TypeVar

from mlxcel.core.errors import GenerationFailed, MlxcelError, ModelLoading, ServerBusy, StartupError, TimedOut
from mlxcel.core.ports import RowRunner
from mlxcel.core.vectors import TokenRow

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_BATCHES_AHEAD = 2  # one running, one ready


class BatchState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of batches and of the queue.

    Attributes:
        batch_tokens: tokens of one forward pass; a longer row runs alone.
        queue_places: requests that may wait; those that fit into one batch together share a place.
        timeout_s: longest wait of a request for its results.
    """

    batch_tokens: int = 2048
    queue_places: int = 8
    timeout_s: float = 120.0


class _Request(Generic[Result]):
    """Rows of one caller: those still waiting (longest first) and the results so far."""

    def __init__(self, rows: Sequence[TokenRow], done: asyncio.Future[list[Result]]) -> None:
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].token_ids), reverse=True)
        self.waiting = deque((index, rows[index]) for index in order)
        self.rows = len(rows)
        self.tokens = sum(len(row.token_ids) for row in rows)
        self.done = done
        self._results: dict[int, Result] = {}

    @property
    def begun(self) -> bool:
        return len(self.waiting) < self.rows

    def settle(self, index: int, result: Result) -> None:
        self._results[index] = result
        if len(self._results) == self.rows and not self.done.done():
            self.done.set_result([self._results[place] for place in range(self.rows)])

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


_Batch = list[tuple[_Request[Result], int, TokenRow]]


class BatchClient(Generic[Result]):
    """The door to a model that maps rows to results. Everything but the model itself belongs to the event loop's thread.

    Args:
        load: builds the model; called on the owner thread.
    """

    def __init__(self, load: Callable[[], RowRunner[Result]], limits: BatchLimits, *, name: str) -> None:
        self.limits = limits
        self._load = load
        self._closed = False
        self._requests: deque[_Request[Result]] = deque()
        self._again: deque[_Batch[Result]] = deque()  # one request each, from batches that failed
        self._running = 0
        self._owner = ThreadPoolExecutor(1, thread_name_prefix=f"mlxcel-{name}")
        self._runner: RowRunner[Result] | None = None  # owner thread
        self._ready: Future[None] = Future()  # done after the load, with its error if it failed

    def start(self) -> None:
        """Begin loading. Call it from the event loop that will ask for results."""
        self._owner.submit(self._open)

    @property
    def state(self) -> BatchState:
        """Whether rows are taken."""
        if self._closed:
            return BatchState.CLOSED
        if not self._ready.done():
            return BatchState.LOADING
        return BatchState.READY if self._ready.exception() is None else BatchState.FAILED

    async def wait_ready(self) -> None:
        """Wait until the model is loaded.

        Raises:
            StartupError: it could not be loaded.
        """
        await asyncio.shield(asyncio.wrap_future(self._ready))

    async def close(self) -> None:
        """Fail what waits, let the running batch end, and free the model."""
        self._closed = True
        for request in [*self._requests, *(batch[0][0] for batch in self._again)]:
            request.fail(_stopped())
        self._requests.clear()
        self._again.clear()
        self._owner.submit(self._free)
        await asyncio.to_thread(self._owner.shutdown, wait=True)

    async def run(self, rows: Sequence[TokenRow]) -> list[Result]:
        """Results in the order of ``rows``. A caller that is cancelled takes its waiting rows out of the queue.

        Raises:
            ModelLoading: the model is not ready.
            ServerBusy: too many requests wait.
            TimedOut: the results took too long.
            GenerationFailed: the model failed on these rows, or has stopped.
        """
        if self.state is BatchState.LOADING:
            raise ModelLoading()
        if self.state is not BatchState.READY:
            raise _stopped()
        if not rows:
            return []
        request = _Request[Result](rows, asyncio.get_running_loop().create_future())
        self._admit(request)
        self._requests.append(request)
        self._fill()
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return await request.done
        except TimeoutError:
            raise TimedOut(f"the model did not answer within {self.limits.timeout_s:g} s; send fewer inputs") from None
        finally:
            request.waiting.clear()

    def _admit(self, request: _Request[Result]) -> None:
        """Requests that fit into one batch share a place; a request is never refused while none waits."""
        batch_tokens = self.limits.batch_tokens
        waiting = [other for other in self._requests if other.waiting and not other.begun]
        taken = sum(min(other.tokens, batch_tokens) for other in waiting)
        if waiting and taken + min(request.tokens, batch_tokens) > self.limits.queue_places * batch_tokens:
            raise ServerBusy("The queue is full. Please try again later.")

    def _fill(self) -> None:
        """Hand batches to the owner thread for as long as it has room."""
        while self._running < _BATCHES_AHEAD and self.state is BatchState.READY:
            batch = self._again.popleft() if self._again else self._next_batch()
            if not batch:
                return
            self._running += 1
            computed = asyncio.wrap_future(self._owner.submit(self._compute, [row for _, _, row in batch]))
            computed.add_done_callback(partial(self._settle, batch))

    def _next_batch(self) -> _Batch[Result]:
        """Rows of the request whose turn it is, then of the others; requests that got rows go to the back."""
        batch: _Batch[Result] = []
        tokens = 0
        for _ in range(len(self._requests)):
            request = self._requests.popleft()
            while request.waiting:
                index, row = request.waiting[0]
                if batch and tokens + len(row.token_ids) > self.limits.batch_tokens:
                    break
                request.waiting.popleft()
                batch.append((request, index, row))
                tokens += len(row.token_ids)
            if request.waiting:
                self._requests.append(request)
            if tokens >= self.limits.batch_tokens:
                break
        return batch

    def _settle(self, batch: _Batch[Result], computed: asyncio.Future[Sequence[Result]]) -> None:
        self._running -= 1
        if computed.cancelled():
            error: BaseException | None = _stopped()
        else:
            error = computed.exception()
        requests = list(dict.fromkeys(entry[0] for entry in batch))
        if error is None:
            for (request, index, _), result in zip(batch, computed.result(), strict=True):
                request.settle(index, result)
        elif len(requests) > 1 and self.state is BatchState.READY:  # neighbours must not suffer from the one at fault
            self._again.extend([entry for entry in batch if entry[0] is request] for request in requests)
        else:
            failure = error if isinstance(error, MlxcelError) else GenerationFailed("the model failed on this input")
            requests[0].waiting.clear()
            for request in requests:
                request.fail(failure)
        self._fill()

    # ---- owner thread ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._runner = self._load()
        except StartupError as error:
            self._ready.set_exception(error)
        except Exception:
            log.exception("the model could not be loaded")
            self._ready.set_exception(StartupError("the model could not be loaded; the log has the cause"))
        else:
            self._ready.set_result(None)

    def _compute(self, rows: Sequence[TokenRow]) -> Sequence[Result]:
        if self._runner is None:
            raise _stopped()
        try:
            return self._runner.run(rows)
        except MlxcelError:
            raise
        except Exception:
            log.exception("a batch of %d rows failed", len(rows))
            raise

    def _free(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


def _stopped() -> GenerationFailed:
    return GenerationFailed("the model has stopped and takes no more work; restart the server")
