"""The engine over a scripted model: what a work goes through, and what its neighbours notice of it."""

from __future__ import annotations

import pytest

from mlxcel.core.errors import ContextOverflow, GenerationFailed, InvalidRequest
from mlxcel.core.events import Failed, Finished, FinishReason, PrefillDone, Tokens
from mlxcel.core.usage import Usage
from mlxcel.engine.config import EngineConfig
from mlxcel.testing.engine_bench import END_ID, EngineBench, make_work, small_model, tokens_for


def test_a_work_goes_from_prefill_over_tokens_to_its_end() -> None:
    bench = EngineBench([11, 12, 13])
    bench.submit(make_work(prompt=5))
    bench.finish()
    assert [type(event) for event in bench.events["w"]] == [PrefillDone, Tokens, Tokens, Tokens, Finished]
    assert bench.tokens("w") == [11, 12, 13]
    end = bench.finished("w")
    assert end.reason is FinishReason.EOS
    assert end.usage == Usage(prompt_tokens=5, completion_tokens=4)  # the end-of-generation token was generated too


def test_max_tokens_ends_a_work_with_exactly_that_many() -> None:
    bench = EngineBench()
    bench.submit(make_work(max_tokens=3))
    bench.finish()
    assert len(bench.tokens("w")) == 3
    assert bench.finished("w").reason is FinishReason.LENGTH
    assert not bench.finished("w").truncated


def test_rows_of_one_batch_are_independent_of_each_other() -> None:
    works = [make_work(f"w{count}", prompt=range(count, 3 * count), max_tokens=4 + count) for count in range(1, 9)]
    together = EngineBench(config=EngineConfig(max_rows=4))
    together.submit(*works)
    together.finish()
    for work in works:
        assert together.tokens(work.id) == tokens_for(work.prompt_ids)[: work.max_tokens]


def test_a_failing_row_ends_alone() -> None:
    def script(prompt_ids: tuple[int, ...]) -> list[int | Exception]:
        return [11, 12, RuntimeError("secret detail")] if len(prompt_ids) == 3 else tokens_for(prompt_ids)

    bench = EngineBench(script)
    bench.submit(make_work("bad", prompt=3), make_work("good", prompt=4))
    bench.finish()
    assert bench.tokens("bad") == [11, 12]
    error = bench.failed("bad").error
    assert isinstance(error, GenerationFailed)
    assert "secret" not in error.message
    assert bench.finished("good").reason is FinishReason.LENGTH


def test_a_device_fault_ends_the_rows_of_its_step_and_the_engine_goes_on() -> None:
    bench = EngineBench(faults={2: RuntimeError("device lost")})
    bench.submit(make_work("a"), make_work("b"))
    bench.step(3)
    bench.submit(make_work("c"))
    bench.finish()
    assert isinstance(bench.failed("a").error, GenerationFailed)
    assert isinstance(bench.failed("b").error, GenerationFailed)
    assert len(bench.tokens("c")) == 8


def test_consecutive_device_faults_stop_the_engine() -> None:
    bench = EngineBench(faults={step: RuntimeError("device lost") for step in range(3)})
    for id in ("a", "b"):
        bench.submit(make_work(id))
        bench.step()
    bench.submit(make_work("c"))
    with pytest.raises(RuntimeError, match="device lost"):
        bench.step()


@pytest.mark.parametrize("fault", [MemoryError(), type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")])
@pytest.mark.parametrize("state", ["paged", "snapshot"])
def test_out_of_memory_costs_only_the_newest_row(fault: Exception, state: str) -> None:
    bench = EngineBench(faults={2: fault}, info=small_model(state=state))
    bench.submit(make_work("old", 40), make_work("mid", range(500, 540)))
    bench.step()
    bench.submit(make_work("new"))
    bench.finish()
    assert "memory" in bench.failed("new").error.message
    assert bench.tokens("old") == tokens_for(make_work(prompt=40).prompt_ids)[:8]
    assert bench.tokens("mid") == tokens_for(tuple(range(500, 540)))[:8]


def test_unusable_works_fail_without_a_slot() -> None:
    bench = EngineBench(config=EngineConfig(context_tokens_per_slot=64))
    bench.submit(make_work("long", prompt=64), make_work("empty", prompt=0), make_work("fits", prompt=63))
    bench.finish()
    overflow = bench.failed("long").error
    assert isinstance(overflow, ContextOverflow)
    assert (overflow.prompt_tokens, overflow.context_tokens) == (64, 64)
    assert isinstance(bench.failed("empty").error, InvalidRequest)
    assert len(bench.tokens("fits")) == 1


def test_a_full_window_ends_a_work_as_truncated() -> None:
    bench = EngineBench(config=EngineConfig(context_tokens_per_slot=20))
    bench.submit(make_work(prompt=12, max_tokens=1000))
    bench.finish()
    end = bench.finished("w")
    assert (end.reason, end.truncated, len(bench.tokens("w"))) == (FinishReason.LENGTH, True, 8)


@pytest.mark.parametrize("keep_tokens", [0, 4, -1, 10_000])
def test_context_shift_goes_on_past_the_window(keep_tokens: int) -> None:
    bench = EngineBench(range(500, 900), config=EngineConfig(context_tokens_per_slot=32, context_shift=True))
    bench.submit(make_work(prompt=12, max_tokens=100, keep_tokens=keep_tokens))
    bench.finish()
    end = bench.finished("w")
    assert (end.reason, end.truncated, end.usage.completion_tokens) == (FinishReason.LENGTH, True, 100)
    assert end.usage.prompt_tokens == 12
    assert max(step.position for plan in bench.model.plans for step in plan.rows) < 32
    reopened = [plan.rows[0] for plan in bench.model.plans if plan.rows[0].position == 0][1:]
    assert reopened
    kept = {0: 0, 4: 4, -1: 12, 10_000: 12}[keep_tokens]
    assert all(step.token_ids[:kept] == tuple(range(100, 100 + kept)) for step in reopened)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_cancel_at_any_stage_frees_the_slot_at_once(steps: int) -> None:
    bench = EngineBench(config=EngineConfig(max_rows=1, prefill_chunk_tokens=16))
    bench.submit(make_work("w", prompt=40, max_tokens=100), make_work("next"))
    bench.step(steps)  # 0: queued, 1 and 2: in prefill, 5: decoding
    bench.engine.cancel("w")
    bench.engine.cancel("w")
    bench.engine.cancel("unknown")
    bench.step()
    assert bench.finished("w").reason is FinishReason.CANCELLED
    assert bench.finished("w").usage.prompt_tokens == 40
    assert bench.engine.stats().slots[0].work_id == "next"
    bench.finish()
    assert len(bench.tokens("next")) == 8


def test_close_fails_what_is_live() -> None:
    bench = EngineBench(config=EngineConfig(max_rows=1))
    bench.submit(make_work("running"), make_work("waiting"))
    bench.step()
    bench.engine.close()
    assert bench.model.is_shut_down


def test_the_end_token_is_not_shown_even_as_the_first_one() -> None:
    bench = EngineBench([END_ID])
    bench.submit(make_work())
    bench.finish()
    assert [type(event) for event in bench.events["w"]] == [PrefillDone, Finished]


def test_a_work_that_fits_an_empty_pool_is_never_refused() -> None:
    model = small_model(block_count=4, context_tokens=1000)
    bench = EngineBench(info=model)
    assert bench.engine.context_tokens == 64
    bench.submit(make_work("a", prompt=62), make_work("b", prompt=63), make_work("c", prompt=64))
    bench.finish()
    assert len(bench.tokens("a")) == 2
    assert len(bench.tokens("b")) == 1
    assert isinstance(bench.events["c"][0], Failed)


def test_rows_that_run_out_of_blocks_give_way_and_come_back() -> None:
    bench = EngineBench(info=small_model(block_count=6), config=EngineConfig(kv_admission_watermark=0.0))
    works = [make_work(f"w{place}", prompt=range(place, place + 20), max_tokens=40) for place in range(3)]
    bench.submit(*works)
    bench.finish()
    assert bench.engine.stats().preemptions > 0
    for work in works:
        assert bench.tokens(work.id) == tokens_for(work.prompt_ids)[:40]
        assert sum(isinstance(event, PrefillDone) for event in bench.events[work.id]) == 1
