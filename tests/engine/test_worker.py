"""The owner thread by itself: commands in, one delivery a step out, and an end for everything."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from mlxcel.core.errors import GenerationFailed, StartupError
from mlxcel.core.events import EngineEvent, Failed, Finished
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.generation import GenerationRunner
from mlxcel.engine.worker import Worker, WorkerState
from mlxcel.testing.engine_bench import make_work, tokens_for
from mlxcel.testing.scripted_runner import ScriptedRunner


class Deliveries:
    """Collects what a worker delivers."""

    def __init__(self) -> None:
        self.batches: list[Sequence[EngineEvent]] = []
        self._changed = threading.Condition()

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        with self._changed:
            self.batches.append(events)
            self._changed.notify_all()

    def ends(self) -> dict[str, Finished | Failed]:
        ends: dict[str, Finished | Failed] = {}
        for event in (event for batch in self.batches for event in batch):
            if isinstance(event, (Finished, Failed)):
                assert event.id not in ends
                ends[event.id] = event
        return ends

    def wait_for_ends(self, count: int) -> dict[str, Finished | Failed]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ends()) >= count, 5)
        return self.ends()


def engine(model: ScriptedRunner | None = None) -> GenerationRunner:
    return GenerationRunner(model or ScriptedRunner(tokens_for), EngineConfig())


def test_all_events_of_a_step_are_one_delivery() -> None:
    deliveries = Deliveries()
    model = ScriptedRunner(tokens_for)
    worker = Worker(lambda: engine(model))
    for place in range(4):
        worker.submit(make_work(f"w{place}", range(place, place + 5), 20))  # before the start: all join the first step
    worker.start(deliveries)
    deliveries.wait_for_ends(4)
    worker.close()
    assert len(deliveries.batches) == len(model.plans) == 20


def test_a_cancel_that_overtakes_nothing_is_carried_out_in_order() -> None:
    deliveries = Deliveries()
    worker = Worker(engine)
    worker.submit(make_work("w", max_tokens=1000))
    worker.cancel("w")
    worker.cancel("never seen")
    worker.start(deliveries)
    end = deliveries.wait_for_ends(1)["w"]
    worker.close()
    assert isinstance(end, Finished)
    assert end.usage.completion_tokens == 0


def test_calls_run_on_the_owner_thread_and_hand_back_errors() -> None:
    worker = Worker(engine, name="tiny")
    worker.start(Deliveries())
    assert worker.call(lambda runner: threading.current_thread().name).result(5) == "mlxcel-tiny"
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda runner: 1 // 0).result(5)
    assert worker.state is WorkerState.READY
    worker.close()
    with pytest.raises(GenerationFailed):
        worker.call(lambda runner: 1).result(5)


def test_after_the_end_every_submitted_work_fails_at_once() -> None:
    deliveries = Deliveries()
    worker = Worker(engine)
    worker.start(deliveries)
    worker.close()
    worker.close()
    assert worker.state is WorkerState.CLOSED
    worker.submit(make_work("late"))
    assert isinstance(deliveries.ends()["late"], Failed)


def test_a_model_that_cannot_load_fails_what_waits_for_it() -> None:
    def build() -> GenerationRunner:
        raise StartupError("weights are missing")

    deliveries = Deliveries()
    worker = Worker(build)
    worker.submit(make_work("early"))
    call = worker.call(lambda runner: 1)
    worker.start(deliveries)
    with pytest.raises(StartupError, match="weights are missing"):
        worker.ready.result(5)
    with pytest.raises(GenerationFailed):
        call.result(5)
    assert isinstance(deliveries.wait_for_ends(1)["early"], Failed)
    worker.close()
    assert worker.state is WorkerState.FAILED


def test_a_model_that_cannot_be_loaded_again_fails_what_woke_it() -> None:
    builds = 0

    def build() -> GenerationRunner:
        nonlocal builds
        builds += 1
        if builds > 1:
            raise RuntimeError("disk gone")
        return engine()

    deliveries = Deliveries()
    worker = Worker(build, sleep_idle_s=0.01)
    worker.start(deliveries)
    worker.ready.result(5)
    for _ in range(500):
        if worker.state is WorkerState.ASLEEP:
            break
        threading.Event().wait(0.01)
    worker.submit(make_work("wakes"))
    assert isinstance(deliveries.wait_for_ends(1)["wakes"], Failed)
    worker.close()
    assert worker.state is WorkerState.FAILED


def test_an_idle_worker_does_not_wake_up() -> None:
    class Counting(GenerationRunner):
        looks = 0

        @property
        def is_idle(self) -> bool:
            type(self).looks += 1
            return super().is_idle

    worker = Worker(lambda: Counting(ScriptedRunner([11]), EngineConfig()))
    worker.start(Deliveries())
    worker.ready.result(5)
    worker.call(lambda runner: 1).result(5)
    before = Counting.looks
    threading.Event().wait(0.1)
    assert Counting.looks - before <= 2
    worker.close()
