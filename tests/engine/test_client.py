"""The door to the engine: places, streams, and the owner thread behind them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mlxcel.core.errors import GenerationFailed, MemoryBudgetExceeded, ModelLoading, ServerBusy, StartupError, TimedOut
from mlxcel.core.events import EngineEvent, Failed, Finished, FinishReason, PrefillDone, Tokens
from mlxcel.core.ports import ModelRunner
from mlxcel.engine.client import EngineClient
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.stream import EventStream
from mlxcel.engine.worker import WorkerState
from mlxcel.testing.engine_bench import make_work, tokens_for
from mlxcel.testing.scripted_runner import ScriptedRunner


@asynccontextmanager
async def running(model: Callable[[], ModelRunner], **config: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(model, EngineConfig(**config))
    client.start()
    try:
        await client.wait_ready()
        yield client
    finally:
        await client.close()


def slow_model() -> ModelRunner:
    return ScriptedRunner(tokens_for, step_s=0.002)


async def collect(stream: EventStream) -> list[EngineEvent]:
    return [event async for event in stream]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is awaited happens on the owner thread
            await asyncio.sleep(0.002)


def test_events_arrive_in_order_and_end() -> None:
    async def scenario() -> None:
        async with running(lambda: ScriptedRunner([11, 12])) as client:
            with client.reserve() as place:
                events = await collect(client.submit(place, make_work()))
            assert [type(event) for event in events] == [PrefillDone, Tokens, Tokens, Finished]
            assert client.places_taken == 0

    asyncio.run(scenario())


def test_the_model_is_built_and_run_on_one_thread_of_its_own() -> None:
    threads: set[str] = set()

    class Watched(ScriptedRunner):
        def run(self, plan: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().run(plan)

    def build() -> ModelRunner:
        threads.add(threading.current_thread().name)
        return Watched([11])

    async def scenario() -> None:
        async with running(build) as client:
            await collect(client.submit(client.reserve(), make_work()))
            threads.add(await client.run_exclusive(lambda runner: threading.current_thread().name))

    asyncio.run(scenario())
    assert threads == {"mlxcel-model"}


def test_places_are_bounded_and_come_back_exactly_once() -> None:
    async def scenario() -> None:
        async with running(slow_model, max_rows=1, max_queue_depth=1) as client:
            first, second = client.reserve(), client.reserve()
            with pytest.raises(ServerBusy):
                client.reserve()
            second.release()
            second.release()
            assert client.places_taken == 1
            stream = client.submit(first, make_work(max_tokens=4))
            first.release()  # the engine holds the place now
            assert client.places_taken == 1
            with pytest.raises(ValueError):
                client.submit(first, make_work("other"))
            with pytest.raises(ValueError):
                client.submit(second, make_work("other"))
            await collect(stream)
            assert client.places_taken == 0

    asyncio.run(scenario())


def test_leaving_a_reservation_unused_gives_the_place_back() -> None:
    async def scenario() -> None:
        async with running(slow_model) as client:
            with pytest.raises(RuntimeError), client.reserve():
                raise RuntimeError
            assert client.places_taken == 0

    asyncio.run(scenario())


def test_nothing_is_reserved_before_the_model_is_there_or_after_it_failed() -> None:
    gate = threading.Event()

    def build() -> ModelRunner:
        gate.wait(5)
        raise RuntimeError("disk gone")

    async def scenario() -> None:
        client = EngineClient(build, EngineConfig())
        client.start()
        with pytest.raises(ModelLoading):
            client.reserve()
        with pytest.raises(ModelLoading):
            client.stats()
        gate.set()
        with pytest.raises(StartupError) as caught:
            await client.wait_ready()
        assert "disk gone" not in caught.value.message
        await until(lambda: client.state is WorkerState.FAILED)
        with pytest.raises(GenerationFailed):
            client.reserve()
        await client.close()

    asyncio.run(scenario())


def test_a_reader_that_leaves_frees_the_slot_and_not_its_neighbour() -> None:
    async def scenario() -> None:
        async with running(slow_model) as client:
            neighbour = client.submit(client.reserve(), make_work("stays", max_tokens=60))
            async with client.submit(client.reserve(), make_work("leaves", max_tokens=4000)) as stream:
                async for event in stream:
                    if isinstance(event, Tokens):
                        break
            await until(lambda: client.places_taken == 1)
            await until(lambda: client.stats().active_sequences <= 1)
            events = await collect(neighbour)
            assert isinstance(events[-1], Finished)
            assert events[-1].usage.completion_tokens == 60

    asyncio.run(scenario())


def test_cancel_keeps_the_stream_open_for_the_end() -> None:
    async def scenario() -> None:
        async with running(slow_model) as client:
            stream = client.submit(client.reserve(), make_work(max_tokens=4000))
            await anext(stream)
            stream.cancel()
            end = (await collect(stream))[-1]
            assert isinstance(end, Finished)
            assert end.reason is FinishReason.CANCELLED

    asyncio.run(scenario())


def test_a_cancelled_reader_task_can_close_its_stream() -> None:
    async def scenario() -> None:
        async with running(slow_model) as client:

            async def read() -> None:
                async with client.submit(client.reserve(), make_work(max_tokens=4000)) as stream:
                    await collect(stream)

            task = asyncio.create_task(read())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: client.places_taken == 0)

    asyncio.run(scenario())


def test_a_slow_reader_gets_every_token_in_few_events() -> None:
    async def scenario() -> None:
        async with running(lambda: ScriptedRunner(tokens_for)) as client:
            work = make_work(max_tokens=2000)
            stream = client.submit(client.reserve(), work)
            await until(lambda: client.places_taken == 0)  # ended before anything was read
            events = await collect(stream)
            assert len(events) < 70
            tokens = [token for event in events if isinstance(event, Tokens) for token in event.token_ids]
            assert tokens == tokens_for(work.prompt_ids)[:2000]

    asyncio.run(scenario())


def test_a_broken_engine_ends_every_work() -> None:
    async def scenario() -> None:
        faults: dict[int, Exception] = {step: RuntimeError("device lost") for step in range(100)}
        async with running(lambda: ScriptedRunner(tokens_for, faults=faults, step_s=0.001)) as client:
            streams = [client.submit(client.reserve(), make_work(f"w{place}", max_tokens=50)) for place in range(30)]
            for stream in streams:
                assert isinstance((await collect(stream))[-1], Failed)
            await until(lambda: client.state is WorkerState.FAILED)
            assert client.places_taken == 0
            with pytest.raises(GenerationFailed):
                client.reserve()

    asyncio.run(scenario())


def test_close_ends_live_works() -> None:
    async def scenario() -> None:
        async with running(slow_model) as client:
            stream = client.submit(client.reserve(), make_work(max_tokens=4000))
            await anext(stream)
            await client.close()
            assert isinstance((await collect(stream))[-1], Failed)

    asyncio.run(scenario())


def test_an_idle_model_is_freed_and_comes_back_with_the_next_work() -> None:
    built: list[ScriptedRunner] = []

    def build() -> ModelRunner:
        built.append(ScriptedRunner([11, 12]))
        return built[-1]

    async def scenario() -> None:
        async with running(build, sleep_idle_s=0.05) as client:
            for id in ("first", "second"):
                await until(lambda: client.state is WorkerState.ASLEEP)
                assert built[-1].is_shut_down
                assert client.info.name == "scripted"
                assert client.stats().active_sequences == 0
                events = await collect(client.submit(client.reserve(), make_work(id)))
                assert isinstance(events[-1], Finished)
            assert client.stats().sequences_completed == 2

    asyncio.run(scenario())
    assert len(built) == 3


def test_a_work_whose_next_token_is_overdue_is_ended() -> None:
    stuck = threading.Event()

    class Sticky(ScriptedRunner):
        def run(self, plan: Any) -> Any:
            if len(self.plans) == 3:
                stuck.wait(5)
            return super().run(plan)

    async def scenario() -> None:
        async with running(lambda: Sticky(tokens_for), decode_timeout_s=0.1) as client:
            try:
                stream = client.submit(client.reserve(), make_work(max_tokens=4000))
                end = (await collect(stream))[-1]
                assert isinstance(end, Failed)
                assert isinstance(end.error, TimedOut)
                assert client.places_taken == 1  # the engine has not let go of it
            finally:
                stuck.set()
            await until(lambda: client.places_taken == 0)

    asyncio.run(scenario())


def test_a_long_wait_for_the_first_token_is_not_overdue() -> None:
    async def scenario() -> None:
        async with running(lambda: ScriptedRunner(tokens_for, prefill_token_s=0.02), decode_timeout_s=0.1) as client:
            events = await collect(client.submit(client.reserve(), make_work(prompt=20, max_tokens=3)))
            assert isinstance(events[-1], Finished)

    asyncio.run(scenario())


def test_a_work_over_the_memory_budget_is_refused_before_it_starts() -> None:
    async def scenario() -> None:
        async with running(slow_model, request_memory_budget_bytes=64 * 100) as client:
            with client.reserve() as place:
                with pytest.raises(MemoryBudgetExceeded) as caught:
                    client.submit(place, make_work(prompt=50, max_tokens=60))
                assert (caught.value.estimated_bytes, caught.value.budget_bytes) == (64 * 110, 64 * 100)
                await collect(client.submit(place, make_work(prompt=50, max_tokens=50)))

    asyncio.run(scenario())
