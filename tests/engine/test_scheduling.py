"""Who runs when: the plans of the scheduler, asserted as data."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from mlxcel.core.events import PrefillDone, Tokens
from mlxcel.core.jobs import Priority
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.sched.policy import SHARED_CHUNK_TOKENS, grant_tokens, split_prefill
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.testing.engine_bench import EngineBench, make_work, small_model


def fed(bench: EngineBench) -> list[list[int]]:
    """Tokens fed per row, step by step."""
    return [[len(step.token_ids) for step in plan.rows] for plan in bench.model.plans]


def test_a_lone_prompt_is_prefilled_in_whole_chunks() -> None:
    bench = EngineBench(config=EngineConfig(prefill_chunk_tokens=100))
    bench.submit(make_work(prompt=250, max_tokens=3))
    bench.finish()
    assert fed(bench) == [[100], [100], [50], [1], [1]]
    assert [plan.rows[0].sample for plan in bench.model.plans] == [False, False, True, True, True]


def test_chunk_0_prefills_whole_prompts() -> None:
    bench = EngineBench(config=EngineConfig(prefill_chunk_tokens=0))
    bench.submit(make_work(prompt=5000, max_tokens=1))
    bench.finish()
    assert fed(bench) == [[5000]]


def test_waiting_prompts_are_prefilled_side_by_side() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=8, max_batch_prefill=3))
    bench.submit(*(make_work(f"w{place}", prompt=range(place, place + 10), max_tokens=2) for place in range(5)))
    bench.step()
    assert fed(bench) == [[10, 10, 10]]


def test_prompts_that_share_a_step_stay_within_its_tokens() -> None:
    bench = EngineBench(config=EngineConfig(max_batch_prefill_tokens=60))
    bench.submit(*(make_work(f"w{place}", prompt=range(place, place + 50), max_tokens=2) for place in range(3)))
    bench.step()
    assert fed(bench) == [[50, 10]]


@pytest.mark.parametrize(
    ("remaining", "total", "head", "prompts", "shares"),
    [
        ([], 100, 10, 4, []),
        ([40], 100, 10, 4, [40]),
        ([400], 100, 10, 4, [100]),
        ([400], 5, 10, 4, [10]),  # the grant is owed even over the budget
        ([400, 30], 100, 10, 4, [70, 30]),  # the short one does not wait; the oldest gets the rest
        ([400, 300, 30], 100, 10, 4, [50, 20, 30]),
        ([400, 300, 30], 100, 90, 4, [90, 0, 10]),
        ([400, 30, 30], 100, 10, 2, [70, 30, 0]),
        ([10, 300], 100, 10, 4, [10, 90]),
    ],
)
def test_split_prefill(remaining: list[int], total: int, head: int, prompts: int, shares: list[int]) -> None:
    assert split_prefill(remaining, total_tokens=total, head_tokens=head, max_prompts=prompts) == shares


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
@pytest.mark.parametrize("interval", [1, 4, 16, 100])
def test_a_prompt_of_c_chunks_has_its_first_token_within_c_times_n_plus_1_steps(chunks: int, interval: int) -> None:
    config = EngineConfig(prefill_chunk_tokens=64, prefill_grant_interval=interval, max_rows=5)
    bench = EngineBench(config=config, decode_row_s=0.001, prefill_token_s=1.0)  # prefill is hopelessly slow
    bench.submit(*(make_work(f"d{place}", prompt=range(place, place + 4), max_tokens=4000) for place in range(4)))
    bench.step(3)
    bench.submit(make_work("long", prompt=range(3000, 3000 + 64 * chunks)))
    bench.step(chunks * (interval + 1))
    assert any(isinstance(event, PrefillDone) for event in bench.events["long"])


def test_grant_interval_0_leaves_the_share_to_the_time_rule() -> None:
    assert grant_tokens(2048, 0) == 1
    assert grant_tokens(2048, 16) == SHARED_CHUNK_TOKENS // 16
    assert grant_tokens(0, 16) == SHARED_CHUNK_TOKENS // 16
    assert grant_tokens(32, 16) == 2


def run_and_time(bench: EngineBench, steps: int, until: str | None = None) -> dict[str, list[float]]:
    """Step, and note when each work got tokens."""
    times: dict[str, list[float]] = {}
    for _ in range(steps):
        before = {id: len(events) for id, events in bench.events.items()}
        bench.step()
        for id, events in bench.events.items():
            if any(isinstance(event, Tokens) for event in events[before[id] :]):
                times.setdefault(id, []).append(bench.clock())
        if until is not None and until in times:
            break
    return times


@pytest.mark.parametrize("prefill_token_s", [0.00005, 0.0002, 0.0004])
def test_a_long_prompt_neither_stalls_running_streams_nor_starves(prefill_token_s: float) -> None:
    """The documented bounds: inter-token p99 under 3x, time to first token under 2x its lone value plus the grants owed."""
    costs: dict[str, Any] = {"step_s": 0.004, "decode_row_s": 0.001, "prefill_token_s": prefill_token_s}
    prompt = range(10_000, 18_000)
    model = small_model(context_tokens=10_000, block_count=2000)
    lone = EngineBench(info=model, **costs)
    lone.submit(make_work("long", prompt))
    lone_s = run_and_time(lone, 100, until="long")["long"][0]

    bench = EngineBench(info=model, config=EngineConfig(max_rows=8), **costs)
    streams = [make_work(f"s{place}", range(place, place + 20), max_tokens=9000) for place in range(4)]
    bench.submit(*streams)
    quiet = run_and_time(bench, 60)
    undisturbed_s = statistics.quantiles(_gaps(quiet["s0"][5:]), n=100)[98]
    bench.submit(make_work("long", prompt))
    started_s = bench.clock()
    busy = run_and_time(bench, 5000, until="long")
    for stream in streams:
        assert statistics.quantiles(_gaps(busy[stream.id]), n=100)[98] < 3 * undisturbed_s
    owed_steps = 16 * -(-len(prompt) // 2048)
    assert busy["long"][0] - started_s < 2 * lone_s + owed_steps * undisturbed_s


def _gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=4, prefill_chunk_tokens=512))
    bench.submit(make_work("long", range(1000, 6000)), make_work("short", 20))
    bench.step(2)
    assert any(isinstance(event, PrefillDone) for event in bench.events["short"])
    assert not bench.events["long"]


def test_prompts_advance_although_plain_decode_steps_never_happen_by_themselves() -> None:
    """The time rule needs measurements of plain steps; a queue that never empties must not keep it from getting them."""
    config = EngineConfig(max_rows=9, max_queue_depth=10_000, cache=CacheSettings(enabled=False))
    bench = EngineBench(config=config, step_s=0.001, decode_row_s=0.002, prefill_token_s=0.0001)
    for place in range(200):
        bench.submit(make_work(f"w{place}", range(place, place + 400), max_tokens=30))
    bench.step(400)
    shared = [row for row in fed(bench)[200:] if 1 in row and max(row) > 1]
    assert shared
    assert statistics.median(sum(row) for row in shared) > 100


def test_priorities_order_the_queue() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=1))
    bench.submit(make_work("first"))
    bench.step()
    for id, priority in [("low", 2), ("normal", 1), ("high", 0), ("normal2", 1)]:
        bench.submit(make_work(id, priority=Priority(priority)))
    started: list[str] = []
    while not bench.engine.is_idle:
        bench.step()
        for id, events in bench.events.items():
            if events and id not in started:
                started.append(id)
    assert started == ["first", "high", "normal", "normal2", "low"]


def test_a_low_priority_work_does_not_starve() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=1), step_s=0.5)
    bench.submit(make_work("low", priority=Priority.LOW))
    bench.engine.submit(make_work("h0", priority=Priority.HIGH))
    bench.events["h0"] = []
    for place in range(1, 200):
        bench.submit(make_work(f"h{place}", priority=Priority.HIGH, max_tokens=2))
        bench.step(2)
        if bench.events["low"]:
            break
    assert bench.events["low"]
    assert bench.clock() > 50  # it did wait its turn


def test_preemption_takes_a_slot_from_strictly_lower_priority_only() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=2, enable_preemption=True))
    bench.submit(make_work("low", range(50), 30, priority=Priority.LOW), make_work("normal", range(60), 30))
    bench.step(5)
    bench.submit(make_work("normal2", 5, 3))
    bench.step()
    assert _running(bench) == {"normal", "normal2"}
    bench.submit(make_work("normal3", 6, 3))
    bench.step()
    assert _running(bench) == {"normal", "normal2"}  # equals do not push each other out
    bench.finish()
    assert len(bench.tokens("low")) == 30
    assert bench.engine.stats().preemptions == 1
    assert sum(isinstance(event, PrefillDone) for event in bench.events["low"]) == 1


def test_without_preemption_a_high_priority_work_waits_for_a_slot() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=1))
    bench.submit(make_work("low", priority=Priority.LOW, max_tokens=50))
    bench.step(2)
    bench.submit(make_work("high", priority=Priority.HIGH))
    bench.step()
    assert _running(bench) == {"low"}


def _running(bench: EngineBench) -> set[str | None]:
    return {slot.work_id for slot in bench.engine.stats().slots if slot.state in ("prefill", "decoding")}


def test_admission_leaves_the_watermark_free_while_others_run() -> None:
    config = EngineConfig(kv_admission_watermark=0.5, cache=CacheSettings(enabled=False))
    bench = EngineBench(info=small_model(block_count=10), config=config)
    bench.submit(make_work("a", range(70), 30), make_work("b", range(1000, 1010), 5))
    bench.step()
    assert _running(bench) == {"a"}  # 5 blocks taken; one more would leave less than half
    bench.finish()
    assert len(bench.tokens("b")) == 5
