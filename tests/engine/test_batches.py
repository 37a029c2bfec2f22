"""Concurrent requests to one row runner: they share batches, wait their turn, and fail alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from mlxcel.core.errors import GenerationFailed, ModelLoading, ServerBusy, StartupError, TimedOut
from mlxcel.core.vectors import TokenRow
from mlxcel.engine.batches import BatchClient, BatchLimits, BatchState

pytestmark = pytest.mark.anyio
BAD = 13


class Summing:
    """Adds up the token ids of each row; stops at ``gate`` and breaks on the id BAD."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def run(self, rows: Sequence[TokenRow]) -> list[int]:
        self.gate.wait(10)
        self.batches.append([len(row.token_ids) for row in rows])
        if any(BAD in row.token_ids for row in rows):
            raise RuntimeError("broken")
        return [sum(row.token_ids) for row in rows]

    def close(self) -> None:
        self.closed = True


def row(length: int, value: int = 1) -> TokenRow:
    return TokenRow((value,) * length)


async def started(runner: Summing, limits: BatchLimits) -> BatchClient[int]:
    client = BatchClient[int](lambda: runner, limits, name="test")
    client.start()
    await client.wait_ready()
    return client


async def test_results_come_in_request_order() -> None:
    client = await started(Summing(), BatchLimits(batch_tokens=10))
    assert await client.run([row(3), row(9), row(1), row(20)]) == [3, 9, 1, 20]
    assert await client.run([]) == []
    await client.close()


async def test_batches_hold_rows_up_to_the_token_budget_and_a_longer_row_goes_alone() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=10))
    await client.run([row(2), row(4), row(30), row(6)])
    assert [sum(batch) for batch in runner.batches] == [30, 10, 2]
    await client.close()


async def test_concurrent_requests_share_a_batch() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=100))
    runner.gate.clear()
    busy = [asyncio.ensure_future(client.run([row(5)])) for _ in range(2)]
    await asyncio.sleep(0.05)
    single = [asyncio.ensure_future(client.run([row(5)])) for _ in range(20)]
    await asyncio.sleep(0)
    runner.gate.set()
    assert await asyncio.gather(*busy, *single) == [[5]] * 22
    assert max(len(batch) for batch in runner.batches) == 20
    await client.close()


async def test_a_small_request_does_not_wait_for_the_whole_of_a_large_one() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=10))
    runner.gate.clear()
    large = asyncio.ensure_future(client.run([row(10) for _ in range(50)]))  # noqa: RUF006 - kept
    await asyncio.sleep(0.02)
    small = asyncio.ensure_future(client.run([row(1)]))
    await asyncio.sleep(0)
    runner.gate.set()
    assert await small == [1]
    assert len(runner.batches) < 10
    assert not large.done()
    assert await large == [10] * 50
    await client.close()


async def test_a_full_queue_is_told_at_once() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=10, queue_places=2))
    runner.gate.clear()
    running = [asyncio.ensure_future(client.run([row(10)])) for _ in range(4)]  # two under way, two waiting
    await asyncio.sleep(0.02)
    with pytest.raises(ServerBusy):
        await client.run([row(10)])
    runner.gate.set()
    assert await asyncio.gather(*running) == [[10]] * 4
    assert await client.run([row(10)]) == [10]
    await client.close()


async def test_small_requests_share_a_place_in_the_queue() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=10, queue_places=2))
    runner.gate.clear()
    busy = [asyncio.ensure_future(client.run([row(10)])) for _ in range(2)]
    await asyncio.sleep(0.02)
    single = [asyncio.ensure_future(client.run([row(1)])) for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(ServerBusy):
        await client.run([row(1)])
    runner.gate.set()
    await asyncio.gather(*busy, *single)
    await client.close()


async def test_a_caller_that_leaves_takes_its_waiting_rows_along() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=10))
    runner.gate.clear()
    leaving = asyncio.ensure_future(client.run([row(10) for _ in range(50)]))  # noqa: RUF006 - kept
    await asyncio.sleep(0.02)
    leaving.cancel()
    runner.gate.set()
    assert await client.run([row(3)]) == [3]
    assert len(runner.batches) <= 3
    await client.close()


async def test_a_late_answer_is_a_timeout_and_frees_the_queue() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=10, timeout_s=0.05))
    runner.gate.clear()
    with pytest.raises(TimedOut):
        await client.run([row(10) for _ in range(20)])
    runner.gate.set()
    assert await client.run([row(2)]) == [2]
    assert len(runner.batches) <= 3
    await client.close()


async def test_a_fault_ends_its_request_and_no_neighbour() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=100))
    runner.gate.clear()
    busy = [asyncio.ensure_future(client.run([row(1)])) for _ in range(2)]
    await asyncio.sleep(0.02)
    good = asyncio.ensure_future(client.run([row(4), row(5)]))
    bad = asyncio.ensure_future(client.run([row(4), row(1, BAD)]))
    await asyncio.sleep(0)
    runner.gate.set()
    with pytest.raises(GenerationFailed, match="failed on this input"):
        await bad
    assert await good == [4, 5]
    assert await asyncio.gather(*busy) == [[1], [1]]
    assert await client.run([row(2)]) == [2]
    await client.close()


async def test_before_the_load_and_after_the_end_nothing_is_taken() -> None:
    runner, gate = Summing(), threading.Event()

    def load() -> Summing:
        gate.wait(10)
        return runner

    client = BatchClient[int](load, BatchLimits(), name="test")
    client.start()
    with pytest.raises(ModelLoading):
        await client.run([row(1)])
    gate.set()
    await client.wait_ready()
    assert await client.run([row(1)]) == [1]
    await client.close()
    assert runner.closed
    with pytest.raises(GenerationFailed):
        await client.run([row(1)])


async def test_what_waits_at_the_end_is_failed() -> None:
    runner = Summing()
    client = await started(runner, BatchLimits(batch_tokens=1))
    runner.gate.clear()
    waiting = [asyncio.ensure_future(client.run([row(1)])) for _ in range(5)]
    await asyncio.sleep(0.02)
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0.02)
    runner.gate.set()
    await closing
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(outcome, GenerationFailed) for outcome in outcomes)
    assert all(outcome == [1] or isinstance(outcome, GenerationFailed) for outcome in outcomes)


@pytest.mark.parametrize(("fault", "text"), [(StartupError("no such layer"), "no such layer"), (ValueError("x"), "log")])
async def test_a_model_that_cannot_load_says_so(fault: Exception, text: str) -> None:
    def load() -> Summing:
        raise fault

    client = BatchClient[int](load, BatchLimits(), name="test")
    client.start()
    with pytest.raises(StartupError, match=text):
        await client.wait_ready()
    assert client.state is BatchState.FAILED
    with pytest.raises(GenerationFailed):
        await client.run([row(1)])
    await client.close()
