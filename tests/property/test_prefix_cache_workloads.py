"""Random workloads over the scripted model: nothing is lost, nothing is left over, and the cache never changes an answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core.errors import ContextOverflow
from mlxcel.core.events import Failed, Finished, FinishReason
from mlxcel.core.jobs import Priority
from mlxcel.core.ports import ModelInfo
from mlxcel.core.work import CachePolicy, GenerateWork
from mlxcel.engine.config import EngineConfig
from mlxcel.prefix_cache.settings import CacheSettings
from mlxcel.testing.engine_bench import EngineBench, make_work, small_model, tokens_for
from mlxcel.testing.scripted_runner import Script

# Prompts are built from a few pieces of awkward lengths around the block size, so that they share beginnings.
pieces = st.lists(st.sampled_from([(1, 15), (2, 16), (3, 17), (4, 31), (5, 32), (6, 33), (7, 1)]), min_size=1, max_size=5)


@st.composite
def works(draw: st.DrawFn, id: str) -> GenerateWork:
    prompt = [seed * 100 + place for seed, length in draw(pieces) for place in range(length)]
    policy = CachePolicy(
        read=draw(st.booleans()) or draw(st.booleans()),
        write=draw(st.booleans()) or draw(st.booleans()),
        namespace=draw(st.sampled_from(["", "a"])),
        boundaries=tuple(sorted(draw(st.sets(st.integers(1, 200), max_size=3)))),
    )
    return make_work(
        id, prompt, draw(st.integers(1, 40)), cache=policy, priority=draw(st.sampled_from(list(Priority))), keep_tokens=4
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[GenerateWork, int, int]]:
    """(work, steps before the next one arrives, steps after which it is cancelled or -1)."""
    count = draw(st.integers(1, 12))
    return [
        (draw(works(f"w{place}")), draw(st.integers(0, 6)), draw(st.sampled_from([-1, -1, -1, 0, 1, 3, 9])))
        for place in range(count)
    ]


configs = st.builds(
    EngineConfig,
    max_rows=st.integers(1, 5),
    prefill_chunk_tokens=st.sampled_from([0, 7, 16, 48, 2048]),
    prefill_grant_interval=st.sampled_from([0, 1, 16]),
    max_batch_prefill=st.integers(1, 4),
    max_batch_prefill_tokens=st.sampled_from([0, 64]),
    kv_admission_watermark=st.sampled_from([0.0, 0.1]),
    enable_preemption=st.booleans(),
    context_tokens_per_slot=st.sampled_from([0, 150]),
    context_shift=st.booleans(),
    prompt_lookup=st.booleans(),
    cache=st.builds(
        CacheSettings,
        enabled=st.sampled_from([True, True, True, False]),
        capacity_bytes=st.sampled_from([None, 0, 64 * 16 * 5, 64 * 16 * 20]),
        max_entries=st.sampled_from([1, 3, 1024]),
        ttl_s=st.sampled_from([0.5, 3600.0]),
        min_prefix_tokens=st.sampled_from([1, 16, 32]),
        partial_match=st.booleans(),
        snapshot_max_entries=st.sampled_from([1, 4, 100]),
    ),
)
models = st.sampled_from(
    [
        small_model(block_count=14),
        small_model(block_count=40),
        small_model(block_count=400),
        small_model(block_count=80, block_tokens=8),
        small_model(state="snapshot", block_count=0, state_bytes=1000),
    ]
)


def repetitive(prompt_ids: tuple[int, ...]) -> list[int | Exception]:
    """An answer that prompt lookup can guess now and then."""
    seed = hash(prompt_ids)
    return [*(prompt_ids[-20:]), *(10 + (step * (1 + seed % 3) // 3) % 7 for step in range(4096))]


def breaking(prompt_ids: tuple[int, ...]) -> list[int | Exception]:
    """An answer that fails after a few tokens for some prompts."""
    return [*tokens_for(prompt_ids)[: hash(prompt_ids) % 9], ValueError("row")]


@settings(max_examples=150, deadline=None)
@given(
    workload=workloads(), config=configs, model=models, reset_at=st.integers(0, 12),
    script=st.sampled_from([tokens_for, repetitive, breaking]),
    faults=st.dictionaries(st.integers(0, 60), st.sampled_from([MemoryError, RuntimeError]), max_size=2),
)
def test_any_workload_ends_clean_and_says_what_a_cold_run_says(
    workload: list[tuple[GenerateWork, int, int]],
    config: EngineConfig,
    model: ModelInfo,
    reset_at: int,
    script: Script,
    faults: dict[int, type[Exception]],
) -> None:
    config = replace(config, max_queue_depth=100)
    thrown: dict[int, Exception] = {step: fault() for step, fault in faults.items()}
    bench = EngineBench(script, info=model, config=config, step_s=0.01, faults=thrown)
    cancels: dict[int, list[str]] = {}
    now = 0
    for place, (work, gap, cancel_after) in enumerate(workload):
        bench.submit(work)
        if cancel_after >= 0:
            cancels.setdefault(now + cancel_after, []).append(work.id)
        if place == reset_at:
            bench.engine.reset_cache()
        for _ in range(gap):
            for id in cancels.pop(now, ()):
                bench.engine.cancel(id)
            bench.step()
            bench.engine.check()
            now += 1
    while not bench.engine.is_idle and now < 5000:
        for id in cancels.pop(now, ()):
            bench.engine.cancel(id)
        bench.step()
        bench.engine.check()
        now += 1
    bench.check_at_rest()
    for work, _, _ in workload:
        end = bench.events[work.id][-1]
        if isinstance(end, Failed):
            assert isinstance(end.error, ContextOverflow) or script is breaking or faults
            continue
        assert isinstance(end, Finished)
        tokens = bench.tokens(work.id)
        if not end.truncated and script is not breaking:
            assert tokens == script(work.prompt_ids)[: len(tokens)]
        if end.reason is FinishReason.LENGTH and not end.truncated:
            assert len(tokens) == work.max_tokens
        assert end.usage.completion_tokens == len(tokens) + (end.reason is FinishReason.EOS)
        assert end.usage.cached_tokens < max(1, end.usage.prompt_tokens)
    stats = bench.engine.cache_stats()
    assert 0 <= stats.hits <= stats.lookups <= len(workload)
    bench.engine.reset_cache()
    bench.engine.check()
    assert bench.engine.cache_stats().entries == 0
    assert bench.model.snapshot_count == 0
