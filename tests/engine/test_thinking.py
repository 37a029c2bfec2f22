"""Thinking budgets and constraints, token by token."""

from __future__ import annotations

import pytest

from mlxcel.core.events import FinishReason
from mlxcel.core.work import ThinkingPlan
from mlxcel.engine.sched.thinking import ThinkingTracker
from mlxcel.testing.engine_bench import EngineBench, make_work

OPEN, CLOSE_1, CLOSE_2 = 50, 60, 61


class Digits:
    """A constraint: exactly ``length`` tokens from 70 to 79."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.accepted: list[int] = []

    def fill_mask(self, address: int, word_count: int) -> None:
        import ctypes

        words = (ctypes.c_uint32 * word_count).from_address(address)
        for token in range(70, 80):
            words[token // 32] |= 1 << (token % 32)

    def accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return 70 <= token_id < 80 and len(self.accepted) <= self.length

    def rollback(self, token_count: int) -> None:
        del self.accepted[-token_count:]

    @property
    def is_finished(self) -> bool:
        return len(self.accepted) == self.length


def plan(budget: int = -1, *, inside: bool = True) -> ThinkingPlan:
    return ThinkingPlan((OPEN,), (CLOSE_1, CLOSE_2), starts_inside=inside, budget_tokens=budget)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_used_up_budget_closes_the_block_and_the_answer_follows(budget: int) -> None:
    bench = EngineBench(range(200, 300))
    bench.submit(make_work(max_tokens=budget + 4, thinking=plan(budget)))
    bench.finish()
    thought = list(range(200, 200 + budget))
    assert bench.tokens("w") == [*thought, CLOSE_1, CLOSE_2, 200 + budget + 2, 200 + budget + 3]
    assert bench.finished("w").usage.reasoning_tokens == budget
    forced = [step.forced_id for plan in bench.model.plans for step in plan.rows]
    assert forced == [None] * budget + [CLOSE_1, CLOSE_2, None, None]


def test_a_block_that_closes_by_itself_is_left_alone() -> None:
    bench = EngineBench([201, 202, CLOSE_1, CLOSE_2, 203])
    bench.submit(make_work(thinking=plan(10)))
    bench.finish()
    assert bench.tokens("w") == [201, 202, CLOSE_1, CLOSE_2, 203]
    assert bench.finished("w").usage.reasoning_tokens == 2


def test_a_half_written_close_marker_is_completed_not_repeated() -> None:
    bench = EngineBench([201, CLOSE_1, 999, 203, 204])
    bench.submit(make_work(max_tokens=4, thinking=plan(2)))
    bench.finish()
    assert bench.tokens("w") == [201, CLOSE_1, CLOSE_2, 203]
    assert bench.finished("w").usage.reasoning_tokens == 1


def test_a_block_opened_by_the_model_counts_from_there() -> None:
    bench = EngineBench([300, OPEN, 301, 302, 303, 304, 305, 306])
    bench.submit(make_work(max_tokens=8, thinking=plan(2, inside=False)))
    bench.finish()
    assert bench.tokens("w") == [300, OPEN, 301, 302, CLOSE_1, CLOSE_2, 305, 306]


def test_a_constraint_applies_after_the_block_only() -> None:
    constraint = Digits(3)
    bench = EngineBench([201, 202, 203, 204, 205, 71, 999, 72])
    bench.submit(make_work(max_tokens=50, thinking=plan(3), constraint=constraint))
    bench.finish()
    assert bench.tokens("w") == [201, 202, 203, CLOSE_1, CLOSE_2, 71, 70, 72]
    assert constraint.accepted == [71, 70, 72]
    assert bench.finished("w").reason is FinishReason.EOS  # the grammar is complete: nothing else could follow


def test_a_constrained_row_is_made_to_open_its_block() -> None:
    bench = EngineBench([201, 202, CLOSE_1, CLOSE_2, 71])
    bench.submit(make_work(thinking=plan(inside=False), constraint=Digits(1)))
    bench.finish()
    assert bench.tokens("w") == [OPEN, 202, CLOSE_1, CLOSE_2, 71]


def test_a_constrained_row_with_budget_0_goes_without_a_block() -> None:
    bench = EngineBench([201])
    bench.submit(make_work(thinking=plan(0, inside=False), constraint=Digits(2)))
    bench.finish()
    assert bench.tokens("w") == [70, 70]


def test_a_constraint_without_thinking_applies_from_the_first_token() -> None:
    bench = EngineBench([75, 76])
    bench.submit(make_work(constraint=Digits(2)))
    bench.finish()
    assert bench.tokens("w") == [75, 76]
    assert all(step.constrained for plan in bench.model.plans for step in plan.rows)


def test_markers_that_overlap_themselves_are_found() -> None:
    tracker = ThinkingTracker(ThinkingPlan((9,), (1, 1, 2), starts_inside=True), constrained=True)
    for token in (1, 1, 1):
        tracker.push(token)
        assert not tracker.constraint_applies
    tracker.push(2)
    assert tracker.constraint_applies
    assert tracker.reasoning_tokens == 1


def test_a_constrained_row_keeps_its_constraint_over_a_preemption() -> None:
    from mlxcel.core.jobs import Priority
    from mlxcel.engine.config import EngineConfig

    constraint = Digits(6)
    bench = EngineBench([71, 72, 73, 74, 75, 76], config=EngineConfig(max_rows=1, enable_preemption=True))
    bench.submit(make_work("low", constraint=constraint, priority=Priority.LOW))
    bench.step(3)
    bench.submit(make_work("high", prompt=9, max_tokens=2, priority=Priority.HIGH))
    bench.finish()
    assert bench.tokens("low") == [71, 72, 73, 74, 75, 76]
    assert constraint.accepted == [71, 72, 73, 74, 75, 76]
