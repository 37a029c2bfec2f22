"""The owner thread of one model: it alone builds the runner, drives it and frees it.

Everything that reaches the thread goes through one inbox; everything that leaves it goes through one ``deliver`` call per
step, with the events of all works of that step. While there is nothing to do the thread sleeps on a condition; it never
polls. A runner that breaks (an exception from ``step``) ends every live work with ``Failed`` and takes no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from mlxcel.core.errors import GenerationFailed, MlxcelError, StartupError
from mlxcel.core.events import EngineEvent, Failed, Finished
from mlxcel.core.ports import Runner
from mlxcel.core.work import GenerateWork

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Runner)
T = TypeVar("T")
Deliver = Callable[[Sequence[EngineEvent]], None]


class WorkerState(StrEnum):
    LOADING = "loading"  # the first load is under way
    READY = "ready"
    ASLEEP = "asleep"  # the model was freed after a quiet time; the next work loads it again
    FAILED = "failed"  # it could not load, or it broke; takes no work
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class _Submit:
    work: GenerateWork


@dataclass(frozen=True, slots=True)
class _Cancel:
    work_id: str


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[Any], Any]
    future: Future[Any]


_Command = _Submit | _Cancel | _Call


class Worker(Generic[R]):
    """Drives one runner on one thread. All public methods may be called from any thread and return at once.

    Args:
        factory: builds the runner; called on the owner thread, again after each sleep.
        sleep_idle_s: quiet seconds after which the runner is closed and its memory freed; None never.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        factory: Callable[[], R],
        *,
        name: str = "model",
        sleep_idle_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ready: Future[None] = Future()  # done after the first load, with its error if it failed
        self._factory = factory
        self._sleep_idle_s = sleep_idle_s
        self._clock = clock
        self._deliver: Deliver = lambda events: None
        self._thread = threading.Thread(target=self._main, name=f"mlxcel-{name}", daemon=True)
        self._wakeup = threading.Condition()
        # Guarded by _wakeup:
        self._inbox: deque[_Command] = deque()
        self._state = WorkerState.LOADING
        self._closing = False
        # Owner thread only:
        self._runner: R | None = None
        self._live: set[str] = set()

    @property
    def state(self) -> WorkerState:
        return self._state

    @property
    def runner(self) -> R | None:
        """The runner while it is loaded. Other threads may only read what the runner documents as safe to read."""
        return self._runner

    def start(self, deliver: Deliver) -> None:
        """Begin loading. ``deliver`` gets each step's events; it is called on the owner thread and must not block."""
        self._deliver = deliver
        self._thread.start()

    def submit(self, work: GenerateWork) -> None:
        """Hand over a work. A worker that takes none any more answers with a ``Failed`` event."""
        if not self._post(_Submit(work)):
            self._deliver([Failed(work.id, _stopped())])

    def cancel(self, work_id: str) -> None:
        """End a work early; its terminal event follows. Unknown ids are ignored."""
        self._post(_Cancel(work_id))

    def call(self, function: Callable[[R], T]) -> Future[T]:
        """Run ``function(runner)`` on the owner thread between two steps."""
        future: Future[T] = Future()
        if not self._post(_Call(function, future)):
            future.set_exception(_stopped())
        return future

    def close(self, timeout_s: float | None = 10.0) -> None:
        """End every live work with ``Failed``, free the model and wait for the thread (``timeout_s`` None: for ever)."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _post(self, command: _Command) -> bool:
        with self._wakeup:
            if self._closing or self._state in (WorkerState.FAILED, WorkerState.CLOSED):
                return False
            self._inbox.append(command)
            self._wakeup.notify()
            return True

    # ---- owner thread ---------------------------------------------------------------------------------------------

    def _main(self) -> None:
        end = WorkerState.CLOSED
        try:
            self._load()
            while self._wait_for_work():
                self._take_commands()
                if self._runner is not None and not self._runner.is_idle:
                    self._publish(self._runner.step())
        except Exception as error:
            end = WorkerState.FAILED
            log.exception("the owner thread stopped")
            self._report_load_failure(error)
        finally:
            self._end(end)

    def _load(self) -> None:
        self._runner = self._factory()
        with self._wakeup:
            self._state = WorkerState.READY
        if not self.ready.done():
            self.ready.set_result(None)

    def _report_load_failure(self, error: Exception) -> None:
        if not self.ready.done():
            unknown = StartupError("the model could not be loaded; the log has the cause")
            self.ready.set_exception(error if isinstance(error, MlxcelError) else unknown)

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when the worker is being closed."""
        quiet_since_s = self._clock()
        while True:
            with self._wakeup:
                if self._closing:
                    return False
                if self._inbox or (self._runner is not None and not self._runner.is_idle):
                    return True
                remaining_s = self._until_sleep_s(quiet_since_s)
                if remaining_s is None or remaining_s > 0:
                    self._wakeup.wait(remaining_s)
                    continue
                self._state = WorkerState.ASLEEP
            self._free()

    def _until_sleep_s(self, quiet_since_s: float) -> float | None:
        if self._sleep_idle_s is None or self._runner is None:
            return None
        return quiet_since_s + self._sleep_idle_s - self._clock()

    def _free(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _take_commands(self) -> None:
        with self._wakeup:
            commands = list(self._inbox)
            self._inbox.clear()
        for place, command in enumerate(commands):
            if self._runner is None:
                try:
                    self._load()
                except Exception:
                    with self._wakeup:  # what was not carried out yet is ended by _end
                        self._inbox.extendleft(reversed(commands[place:]))
                    raise
            self._carry_out(command)

    def _carry_out(self, command: _Command) -> None:
        runner = self._runner
        if runner is None:
            return
        match command:
            case _Submit(work):
                self._live.add(work.id)
                runner.submit(work)
            case _Cancel(work_id):
                runner.cancel(work_id)
            case _Call(function, future):
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(function(runner))
                    except Exception as error:
                        future.set_exception(error)

    def _publish(self, events: Sequence[EngineEvent]) -> None:
        if not events:
            return
        for event in events:
            if isinstance(event, (Finished, Failed)):
                self._live.discard(event.id)
        self._deliver(events)

    def _end(self, state: WorkerState) -> None:
        with self._wakeup:
            self._state = state
            commands = list(self._inbox)
            self._inbox.clear()
        if not self.ready.done():
            self.ready.set_exception(_stopped())
        for command in commands:
            if isinstance(command, _Submit):
                self._live.add(command.work.id)
            elif isinstance(command, _Call) and command.future.set_running_or_notify_cancel():
                command.future.set_exception(_stopped())
        self._publish([Failed(work_id, _stopped()) for work_id in sorted(self._live)])
        try:
            self._free()
        except Exception:
            log.exception("the runner could not be closed")


def _stopped() -> GenerationFailed:
    return GenerationFailed("the engine has stopped and takes no more work; restart the server")
