"""Prompt lookup: proposals, what is made of them, and what they may cost."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.core.errors import GenerationFailed
from mlxcel.core.events import FinishReason
from mlxcel.core.sampling import LoopDetection
from mlxcel.core.work import ThinkingPlan
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.draft import DraftBalance, DraftPace, DraftWish
from mlxcel.engine.prompt_lookup import PromptLookup
from mlxcel.testing.engine_bench import END_ID, EngineBench, make_work

NONE: frozenset[int] = frozenset()
PROMPT = list(range(300, 360))
COPY = PROMPT[10:50]


def drafting(script: Any, **costs: Any) -> EngineBench:
    costs = {"step_s": 0.004, "decode_row_s": 0.001, "prefill_token_s": 0.0005, **costs}
    return EngineBench(script, config=EngineConfig(prompt_lookup=True), **costs)


def test_what_followed_the_last_occurrence_is_proposed() -> None:
    lookup = PromptLookup()
    tokens = [1, 2, 3, 4, 5, 6, 1, 2, 3]

    def propose(limit: int, stop_ids: frozenset[int] = NONE) -> tuple[int, ...]:
        return lookup.propose([DraftWish(7, tokens, limit, stop_ids)])[0]

    assert propose(2) == (4, 5)
    tokens += [4, 5, 6]
    assert propose(7) == (1, 2, 3, 4, 5, 6, 1)  # going on with the repetition
    assert propose(10, frozenset({2})) == (1,)
    tokens = [1, 2, 3, 4]  # another context may follow once the row is forgotten
    lookup.forget(7)
    assert propose(10) == ()
    assert PromptLookup().propose([DraftWish(1, [1, 2], 9, NONE), DraftWish(2, [5] * 4, 2, NONE)]) == [(), (5, 5)]


def test_proposals_grow_with_what_is_accepted() -> None:
    pace = DraftPace("any", 7)
    lengths: list[int] = []
    for accepted in (0, 2, 3, 1, 0):
        lengths.append(pace.next_tokens())
        pace.settle(lengths[-1], accepted)
    assert [*lengths, pace.next_tokens()] == [2, 2, 6, 7, 4, 2]
    stats = pace.stats()
    assert stats is not None
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.rounds) == (21, 6, 5)
    assert DraftPace("any", 1).next_tokens() == 1


def test_three_empty_rounds_pause_for_4_then_8_up_to_32_steps() -> None:
    pace = DraftPace("any", 7)
    pauses: list[int] = []
    tokens = pace.next_tokens()
    for _ in range(6):
        for _ in range(3):
            assert tokens == 2
            pace.settle(tokens, 0)
            tokens = pace.next_tokens()
        pauses.append(0)
        while not tokens:
            pauses[-1] += 1
            tokens = pace.next_tokens()
    assert pauses == [4, 8, 16, 32, 32, 32]
    pace.settle(2, 1)
    for _ in range(3):
        pace.settle(2, 0)
    assert [bool(pace.next_tokens()) for _ in range(5)] == [False] * 4 + [True]


def test_a_copy_takes_few_steps_and_says_the_same() -> None:
    bench = drafting(COPY)
    bench.submit(make_work(prompt=PROMPT, max_tokens=100))
    bench.finish()
    assert bench.tokens("w") == COPY
    assert len(bench.model.plans) < 15
    draft = bench.finished("w").timings.draft
    assert draft is not None
    assert draft.kind == "prompt-lookup"
    assert draft.accepted_tokens + draft.rounds + 10 > len(COPY)
    stats = bench.engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (draft.drafted_tokens, draft.accepted_tokens)


@pytest.mark.parametrize("max_tokens", range(1, 24))
def test_max_tokens_holds_inside_a_burst(max_tokens: int) -> None:
    bench = drafting(COPY)
    bench.submit(make_work(prompt=PROMPT, max_tokens=max_tokens))
    bench.finish()
    assert bench.tokens("w") == COPY[:max_tokens]
    assert bench.finished("w").reason is FinishReason.LENGTH


@pytest.mark.parametrize("length", range(8, 24))
def test_an_end_token_ends_a_burst(length: int) -> None:
    bench = drafting([*COPY[:length], END_ID, *COPY[length:]])
    bench.submit(make_work(prompt=PROMPT, max_tokens=100), make_work("other", prompt=[*PROMPT, 5], max_tokens=100))
    bench.finish()
    for id in ("w", "other"):
        assert bench.tokens(id) == COPY[:length]
        assert bench.finished(id).reason is FinishReason.EOS


def test_an_error_inside_a_burst_keeps_the_tokens_before_it() -> None:
    bench = drafting([*COPY[:12], ValueError("boom")])
    bench.submit(make_work(prompt=PROMPT, max_tokens=100))
    bench.finish()
    assert bench.tokens("w") == COPY[:12]
    assert isinstance(bench.failed("w").error, GenerationFailed)


def test_a_loop_is_cut_inside_a_burst() -> None:
    bench = drafting([11, 12, 13] * 50)
    bench.submit(make_work(max_tokens=100, loop=LoopDetection(20, 1, 4)))
    bench.finish()
    assert bench.tokens("w") == [11, 12, 13] * 4
    assert bench.finished("w").reason is FinishReason.LOOP


def test_a_thinking_budget_is_not_overrun_by_drafts() -> None:
    bench = drafting(COPY)
    bench.submit(make_work(prompt=PROMPT, max_tokens=30, thinking=ThinkingPlan((4,), (5,), True, 9)))
    bench.finish()
    assert bench.tokens("w")[:10] == [*COPY[:9], 5]


def test_a_window_is_not_overrun_by_drafts() -> None:
    bench = EngineBench(COPY, config=EngineConfig(prompt_lookup=True, context_tokens_per_slot=80))
    bench.submit(make_work(prompt=PROMPT, max_tokens=100))
    bench.finish()
    assert bench.tokens("w") == COPY[:20]
    assert bench.finished("w").truncated


def test_drafts_that_are_never_right_cost_next_to_nothing() -> None:
    def misleading(prompt_ids: tuple[int, ...]) -> list[int | Exception]:
        """Every three tokens occurred before, and never with the same follower."""
        return [value for round in range(600) for value in (7, 8, 9, 1000 + round)]

    times: list[float] = []
    for prompt_lookup in (False, True):
        config = EngineConfig(prompt_lookup=prompt_lookup)
        bench = EngineBench(misleading, config=config, step_s=0.002, decode_row_s=0.002, prefill_token_s=0.003)
        bench.submit(make_work(max_tokens=2000))
        bench.finish()
        times.append(bench.clock())
    assert times[0] < times[1] < 1.03 * times[0]


def test_the_balance_lets_drafting_rest_while_it_loses_time() -> None:
    balance = DraftBalance()
    assert balance.allows(1)
    balance.observe(decode_rows=1, accepted_tokens=0, drafted=True, step_s=2.0, plain_step_s=1.0)
    assert not balance.allows(1)
    assert balance.allows(8)  # other batch sizes have their own account
    steps = 0
    while not balance.allows(1):
        balance.observe(decode_rows=1, accepted_tokens=0, drafted=False, step_s=1.0, plain_step_s=1.0)
        steps += 1
    assert 45 <= steps <= 51
    balance.observe(decode_rows=1, accepted_tokens=3, drafted=True, step_s=2.0, plain_step_s=1.0)
    balance.observe(decode_rows=1, accepted_tokens=0, drafted=True, step_s=2.0, plain_step_s=1.0)
    assert balance.allows(1)
