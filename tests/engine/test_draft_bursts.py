"""What holds inside a burst of accepted drafts on a real model: grammars, thinking, end tokens, cancels."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from mlxcel.core.events import Failed, Finished, FinishReason, Tokens
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import GenerateWork, ThinkingPlan
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.generation import GenerationRunner
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.clock import FakeClock
from mlxcel.testing.tiny_models import write_tiny_checkpoint

SAID = tuple(range(100, 130))
PROMPT = (*SAID, 7, 8, *SAID[:3])  # prompt lookup guesses SAID[3:]
OPEN_ID, CLOSE_ID = 4, 5
GREEDY = SamplingParams(temperature=0.0, top_logprobs=0)


class Literal:
    """Allows one sequence of tokens, each of them alone."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self._ids = ids
        self._place = 0

    def fill_mask(self, address: int, word_count: int) -> None:
        assert not self.is_finished, "a mask is asked for after the end"
        words = (ctypes.c_uint32 * word_count).from_address(address)
        token_id = self._ids[self._place]
        words[token_id // 32] |= 1 << token_id % 32

    def accept(self, token_id: int) -> bool:
        if self.is_finished or token_id != self._ids[self._place]:
            return False
        self._place += 1
        return True

    def rollback(self, token_count: int) -> None:
        self._place -= token_count

    @property
    def is_finished(self) -> bool:
        return self._place == len(self._ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint("llama", tmp_path_factory.mktemp("bursts"))


def engine_of(folder: Path, *, prompt_lookup: bool = True) -> GenerationRunner:
    options = RunnerOptions(dtype="fp32", max_rows=4, kv_block_count=64)
    config = EngineConfig(prompt_lookup=prompt_lookup, check_invariants=True)
    return GenerationRunner(build_runner(open_checkpoint(folder), options), config, clock=FakeClock())


def run(engine: GenerationRunner, work: GenerateWork) -> tuple[list[int], Finished, int]:
    """Tokens, the end, and the most tokens that came at once."""
    engine.submit(work)
    tokens: list[int] = []
    burst = 0
    end: Finished | None = None
    while not engine.is_idle:
        for event in engine.step():
            if isinstance(event, Tokens):
                assert len(event.logprobs) == len(event.token_ids)
                tokens += event.token_ids
                burst = max(burst, len(event.token_ids))
            elif isinstance(event, Finished):
                end = event
            elif isinstance(event, Failed):
                raise event.error
    assert end is not None
    return tokens, end, burst


@pytest.mark.parametrize("length", range(4, 22))
def test_a_grammar_that_is_complete_inside_a_burst_ends_it_there(folder: Path, length: int) -> None:
    wanted = SAID[3 : 3 + length]
    work = GenerateWork("w", PROMPT, 60, GREEDY, constraint=Literal(wanted))
    tokens, end, burst = run(engine_of(folder), work)
    assert tuple(tokens) == wanted
    assert end.reason is FinishReason.EOS
    assert burst > 1


def test_a_grammar_that_disagrees_with_the_drafts_wins(folder: Path) -> None:
    wanted = (*SAID[3:8], 300, *SAID[10:16], 301, *SAID[20:25], 302)
    tokens, end, _ = run(engine_of(folder), GenerateWork("w", PROMPT, 60, GREEDY, constraint=Literal(wanted)))
    assert tuple(tokens) == wanted
    assert end.timings.draft is not None


@pytest.mark.parametrize("budget_tokens", [0, 1, 6, 11])
def test_the_grammar_binds_from_the_first_token_after_thinking(folder: Path, budget_tokens: int) -> None:
    """Drafts must not carry a row over the end of its thinking, where the grammar begins."""
    plan = ThinkingPlan((OPEN_ID,), (CLOSE_ID,), starts_inside=True, budget_tokens=budget_tokens)
    for prompt_lookup in (False, True):
        work = GenerateWork("w", PROMPT, 60, GREEDY, constraint=Literal(SAID[3:20]), thinking=plan)
        tokens, end, _ = run(engine_of(folder, prompt_lookup=prompt_lookup), work)
        assert tuple(tokens[budget_tokens:]) == (CLOSE_ID, *SAID[3:20])
        assert end.usage.reasoning_tokens == budget_tokens
    assert end.timings.draft is not None


def test_an_end_token_inside_a_draft_ends_the_row(folder: Path) -> None:
    stop_ids = frozenset({SAID[9]})
    work = GenerateWork("w", PROMPT, 60, GREEDY, stop_ids=stop_ids, constraint=Literal(SAID[3:20]))
    tokens, end, _ = run(engine_of(folder), work)
    assert tuple(tokens) == SAID[3:9]
    assert end.reason is FinishReason.EOS


def test_a_cancel_between_bursts_frees_everything(folder: Path) -> None:
    engine = engine_of(folder)
    engine.submit(GenerateWork("w", PROMPT, 60, GREEDY, constraint=Literal(SAID[3:30])))
    while not engine.counters.accepted_tokens:
        engine.step()
    engine.cancel("w")
    ends = [event for event in engine.step() if isinstance(event, Finished)]
    assert [end.reason for end in ends] == [FinishReason.CANCELLED]
    assert engine.is_idle
    engine.check()
    tokens, *_ = run(engine, GenerateWork("next", PROMPT, 60, GREEDY, constraint=Literal(SAID[3:20])))
    assert tuple(tokens) == SAID[3:20]


def test_an_engine_closes_while_a_cancelled_row_has_not_been_reported(folder: Path) -> None:
    engine = engine_of(folder)
    engine.submit(GenerateWork("w", PROMPT, 60, GREEDY))
    engine.step()
    engine.cancel("w")
    engine.close()
