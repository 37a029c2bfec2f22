"""Reuse of computed prefixes: what is found, what is kept, what is given up, and how it is counted."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.core.events import FinishReason
from mlxcel.core.jobs import Priority
from mlxcel.core.work import CachePolicy
from mlxcel.engine.config import EngineConfig
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.testing.engine_bench import EngineBench, make_work, small_model, tokens_for

BLOCK_BYTES = 16 * 64


def bench_with(model: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **cache: Any) -> EngineBench:
    return EngineBench(
        info=small_model(**(model or {})), config=EngineConfig(cache=CacheSettings(**cache), **(config or {})), step_s=0.001
    )


def ask(bench: EngineBench, id: str, prompt: int | range | list[int], max_tokens: int = 4, **fields: Any) -> int:
    """Run one work to its end; returns its cached tokens."""
    bench.submit(make_work(id, prompt, max_tokens, **fields))
    bench.finish()
    assert bench.prefill(id).cached_tokens == bench.finished(id).usage.cached_tokens
    return bench.finished(id).usage.cached_tokens


def test_the_next_turn_of_a_conversation_reuses_everything_but_the_open_block() -> None:
    bench = bench_with()
    prompt = list(range(1000, 1100))
    assert ask(bench, "turn1", prompt, 10) == 0
    answer = bench.tokens("turn1")
    # 109 tokens were computed (the last one sampled was not fed): 6 full blocks
    assert ask(bench, "turn2", [*prompt, *answer, 7, 8, 9]) == 96
    fed_tokens = sum(len(step.token_ids) for plan in bench.model.plans[10:] for step in plan.rows if step.position < 113)
    assert fed_tokens == 113 - 96


@pytest.mark.parametrize("length", [31, 32, 33, 47, 48, 49, 64, 65])
def test_the_same_prompt_again_never_comes_for_free(length: int) -> None:
    bench = bench_with()
    ask(bench, "first", length)
    cached = ask(bench, "again", length)
    assert cached == (0 if length < 33 else (length - 1) // 16 * 16)
    assert bench.tokens("again") == bench.tokens("first")


def test_a_shorter_common_beginning_than_the_minimum_is_not_used() -> None:
    bench = bench_with(min_prefix_tokens=64)
    ask(bench, "first", [*range(60), *range(500, 600)])
    assert ask(bench, "other", [*range(60), *range(700, 800)]) == 0
    assert bench.engine.cache_stats().hits == 0


def test_a_work_that_may_not_read_or_write_does_neither() -> None:
    bench = bench_with()
    ask(bench, "silent", 100, cache=CachePolicy(read=True, write=False))
    assert bench.engine.cache_stats().entries == 0
    ask(bench, "writer", 100)
    assert ask(bench, "blind", 100, cache=CachePolicy(read=False, write=True)) == 0
    assert ask(bench, "reader", 100) == 96
    assert bench.engine.cache_stats().lookups == 3


def test_namespaces_share_nothing() -> None:
    bench = bench_with()
    ask(bench, "a", 100, cache=CachePolicy(namespace="key A"))
    assert ask(bench, "b", 100, cache=CachePolicy(namespace="key B")) == 0
    assert ask(bench, "a2", 100, cache=CachePolicy(namespace="key A")) == 96


def test_without_partial_matching_only_whole_stored_sequences_are_used() -> None:
    bench = bench_with(partial_match=False)
    ask(bench, "first", range(1000, 1100), 5)  # stores 6 blocks
    assert ask(bench, "common beginning", [*range(1000, 1080), *range(50)]) == 0
    assert ask(bench, "continued", [*range(1000, 1100), 1, 2, 3]) == 96


def test_sixteen_answers_to_one_prompt_compute_and_hold_it_once() -> None:
    bench = bench_with({"block_count": 400}, {"max_rows": 16, "prefill_chunk_tokens": 512})
    prompt = range(10_000, 12_048)
    bench.submit(*(make_work(f"n{place}", prompt, 20) for place in range(16)))
    peak = 0
    while not bench.engine.is_idle:
        bench.step()
        peak = max(peak, 400 - bench.engine.stats().kv_blocks_free)
    bench.check_at_rest()
    assert bench.engine.stats().total_prefill_tokens == 2048 + 15 * 16
    assert peak <= 128 + 16 * 3
    assert all(bench.tokens(f"n{place}") == bench.tokens("n0") for place in range(16))


def test_a_row_does_not_wait_for_a_neighbour_of_another_namespace_or_one_that_does_not_write() -> None:
    for policy in (CachePolicy(namespace="other"), CachePolicy(write=False)):
        bench = bench_with(config={"prefill_chunk_tokens": 64})
        bench.submit(make_work("leader", 200, cache=policy), make_work("follower", 200))
        bench.step()
        assert bench.engine.stats().active_sequences == 2
        bench.finish()


def test_a_row_whose_leader_leaves_computes_the_rest_itself() -> None:
    bench = bench_with(config={"prefill_chunk_tokens": 64})
    bench.submit(make_work("leader", 300), make_work("follower", 300), make_work("unrelated", range(9000, 9010)))
    bench.step()
    assert bench.engine.stats().active_sequences == 2  # the follower waits, the unrelated one does not
    bench.engine.cancel("leader")
    bench.finish()
    assert bench.finished("follower").usage.cached_tokens == 48
    assert bench.tokens("follower") == tokens_for(make_work(prompt=300).prompt_ids)[:8]


def test_a_cancelled_work_leaves_its_sound_state_behind() -> None:
    bench = bench_with(config={"prefill_chunk_tokens": 64})
    bench.submit(make_work("prefill", 300), make_work("decode", range(5000, 5100), 1000))
    bench.step(2)
    bench.engine.cancel("prefill")
    bench.step(60)
    bench.engine.cancel("decode")
    bench.finish()
    assert bench.finished("decode").reason is FinishReason.CANCELLED
    assert ask(bench, "prefill again", 300) > 0
    answer = bench.tokens("decode")
    assert len(answer) > 40
    assert ask(bench, "decode again", [*range(5000, 5100), *answer]) >= 128


def test_a_preempted_row_comes_back_through_the_cache() -> None:
    bench = bench_with(config={"max_rows": 1, "enable_preemption": True})
    bench.submit(make_work("low", 200, 30, priority=Priority.LOW))
    bench.step(10)
    bench.submit(make_work("high", 5, 3, priority=Priority.HIGH))
    bench.finish()
    assert bench.engine.stats().total_prefill_tokens < 200 + 5 + 20
    assert bench.finished("low").usage.cached_tokens == 0  # of the client's prompt, nothing was reused
    assert bench.tokens("low") == tokens_for(make_work(prompt=200).prompt_ids)[:30]


def test_running_rows_take_back_what_the_cache_holds() -> None:
    bench = bench_with({"block_count": 20})
    ask(bench, "first", range(1000, 1200))
    assert bench.engine.cache_stats().unique_block_hashes == 12
    ask(bench, "second", range(5000, 5200), 100)  # 19 blocks
    assert bench.engine.stats().preemptions == 0
    assert bench.engine.cache_stats().unique_block_hashes <= 20
    assert ask(bench, "first again", range(1000, 1200), cache=CachePolicy(write=False)) == 0


def test_the_least_recently_used_sequence_goes_first_and_loses_its_tail_first() -> None:
    bench = bench_with(capacity_bytes=20 * BLOCK_BYTES)
    ask(bench, "old", range(1000, 1130))  # 8 blocks
    ask(bench, "mid", range(2000, 2130))  # 8 blocks
    ask(bench, "old again", range(1000, 1130))
    ask(bench, "new", range(3000, 3130))  # needs 4 of the 16 taken
    assert ask(bench, "probe old", range(1000, 1130), cache=CachePolicy(write=False)) == 128
    assert ask(bench, "probe mid", range(2000, 2130), cache=CachePolicy(write=False)) == 64
    assert bench.engine.cache_stats().bytes == 20 * BLOCK_BYTES


def test_entries_are_counted_as_sequences_and_bounded() -> None:
    bench = bench_with(max_entries=2)
    shared = list(range(1000, 1064))
    for place in range(4):
        ask(bench, f"w{place}", [*shared, *range(place * 100, place * 100 + 40)])
    stats = bench.engine.cache_stats()
    assert (stats.entries, stats.inserts, stats.evictions_lru) == (2, 4, 2)
    assert (stats.unique_block_hashes, stats.total_blocks_stored) == (8, 12)


def test_what_is_not_used_for_long_enough_is_dropped() -> None:
    bench = bench_with(ttl_s=100.0)
    ask(bench, "first", 100)
    bench.clock.advance(99)
    assert ask(bench, "in time", 100) == 96
    bench.clock.advance(101)
    assert ask(bench, "too late", 100) == 0
    assert bench.engine.cache_stats().evictions_ttl == 1


def test_a_sequence_larger_than_the_cache_is_rejected_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = bench_with(capacity_bytes=5 * BLOCK_BYTES)
    ask(bench, "big", range(1000, 1200))
    ask(bench, "big2", range(2000, 2200))
    stats = bench.engine.cache_stats()
    assert (stats.rejections_oversized, stats.entries, stats.inserts) == (2, 0, 0)
    assert sum("--prompt-cache-capacity-bytes" in message for message in caplog.messages) == 1


def test_statistics_have_the_documented_keys_first() -> None:
    bench = bench_with()
    ask(bench, "first", 100)
    ask(bench, "again", 100)
    payload = bench.engine.cache_stats().as_dict()
    assert list(payload)[:18] == [
        "enabled", "apc_enabled", "block_size", "hash", "entries", "bytes", "capacity_bytes", "max_entries", "hits",
        "lookups", "hit_rate", "inserts", "evictions_lru", "evictions_ttl", "rejections_oversized", "total_blocks_stored",
        "unique_block_hashes", "apc_active_entries",
    ]
    assert payload["hit_rate"] == 0.5
    assert (payload["hits"], payload["lookups"], payload["inserts"]) == (1, 2, 1)
    assert payload["bytes"] == 6 * BLOCK_BYTES
    assert bench.engine.stats().cache_pool_active == payload["entries"] == 1


@pytest.mark.parametrize("cache", [{"enabled": False}, {"capacity_bytes": 0}])
def test_a_disabled_cache_keeps_nothing_and_reports_zeros(cache: dict[str, Any]) -> None:
    bench = bench_with(**cache)
    ask(bench, "first", 100)
    assert ask(bench, "again", 100) == 0
    payload = bench.engine.cache_stats().as_dict()
    assert payload.pop("hash") == "sha256"
    assert payload.pop("block_size") == 16
    assert not any(payload.values())


def test_reset_is_idempotent_and_spares_running_rows() -> None:
    bench = bench_with()
    ask(bench, "first", 100)
    bench.submit(make_work("running", 100, 40))
    bench.step(5)
    assert bench.engine.reset_cache().entries == 1
    assert bench.engine.cache_stats().entries == 0
    assert bench.engine.reset_cache().entries == 0
    bench.finish()
    assert len(bench.tokens("running")) == 40
    assert ask(bench, "after", 100) == 96  # what the running row had was kept when it ended


# ---- models with whole-row state ----------------------------------------------------------------------------------


def hybrid(**cache: Any) -> EngineBench:
    return bench_with({"state": "snapshot", "block_count": 0, "state_bytes": 1000}, **cache)


def test_snapshots_at_message_boundaries_serve_other_continuations() -> None:
    bench = hybrid()
    system = list(range(1000, 1100))
    policy = CachePolicy(boundaries=(100,))
    assert ask(bench, "A", [*system, 1, 2, 3], cache=policy) == 0
    assert ask(bench, "B", [*system, 4, 5, 6], cache=policy) == 100
    assert ask(bench, "A again", [*system, 1, 2, 3], cache=policy) > 0
    assert bench.tokens("A again") == bench.tokens("A")


def test_a_snapshot_at_the_finish_serves_the_next_turn() -> None:
    bench = hybrid()
    ask(bench, "turn1", range(1000, 1100), 5)
    history = [*range(1000, 1100), *bench.tokens("turn1")]
    assert ask(bench, "turn2", [*history, 7, 8]) == 104


def test_snapshots_are_bounded_in_bytes_count_and_time() -> None:
    each = 1000 + 103 * 64
    bench = hybrid(snapshot_capacity_bytes=2 * each + 10)
    for place in range(4):
        ask(bench, f"w{place}", range(place * 500, place * 500 + 100))
    assert bench.model.snapshot_count == bench.engine.cache_stats().entries == 2
    assert bench.engine.cache_stats().evictions_lru == 2
    assert bench.engine.cache_stats().bytes == 2 * each

    bench = hybrid(snapshot_max_entries=1, snapshot_ttl_s=50.0)
    ask(bench, "a", range(1000, 1100))
    ask(bench, "b", range(2000, 2100))
    assert bench.model.snapshot_count == 1
    bench.clock.advance(51)
    ask(bench, "c", range(3000, 3100), cache=CachePolicy(write=False))
    assert bench.model.snapshot_count == 0
    assert bench.engine.cache_stats().evictions_ttl == 1

    bench = hybrid(snapshot_capacity_bytes=100)
    ask(bench, "too big", 100)
    assert bench.engine.cache_stats().rejections_oversized == 1


def test_a_cold_snapshot_row_computes_its_boundaries_as_piece_ends() -> None:
    bench = hybrid()
    ask(bench, "w", 100, cache=CachePolicy(boundaries=(40, 70, 100, 400)))
    assert [plan.rows[0].position for plan in bench.model.plans][:3] == [0, 40, 70]


def test_a_row_that_finds_its_prefix_but_no_room_takes_nothing() -> None:
    bench = bench_with({"block_count": 20}, {"kv_admission_watermark": 0.0})
    ask(bench, "first", range(1000, 1081))
    bench.submit(make_work("large", range(5000, 5220), 3), make_work("second", [*range(1000, 1080), *range(100)], 3))
    bench.step()
    assert [slot.state for slot in bench.engine.stats().slots] == ["decoding", *["idle"] * 3, "queued"]
    bench.engine.check()
    bench.finish()
    assert bench.finished("second").usage.cached_tokens == 80
