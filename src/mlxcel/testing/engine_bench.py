"""An engine over a scripted model on a fake clock, run by hand: for tests of scheduling and caching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mlxcel.core.events import EngineEvent, Failed, Finished, PrefillDone, Tokens
from mlxcel.core.ports import ModelInfo
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import GenerateWork
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.generation import GenerationRunner
from mlxcel.testing.clock import FakeClock
from mlxcel.testing.scripted_runner import SCRIPTED_MODEL, ScriptedRunner

END_ID = 2
GREEDY = SamplingParams(temperature=0.0)


def small_model(**changes: Any) -> ModelInfo:
    return replace(SCRIPTED_MODEL, **changes)


def make_work(id: str = "w", prompt: int | Sequence[int] = 5, max_tokens: int = 8, **fields: Any) -> GenerateWork:
    """``prompt`` is the ids, or how many to make up."""
    prompt_ids = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
    fields.setdefault("stop_ids", frozenset({END_ID}))
    return GenerateWork(id, prompt_ids, max_tokens, GREEDY, **fields)


def tokens_for(prompt_ids: tuple[int, ...]) -> list[int | Exception]:
    """A long answer that depends on the whole prompt, so that rows cannot be mistaken for one another."""
    seed = hash(prompt_ids)
    return [10 + (seed + step * 7919) % 1000 for step in range(4096)]


class EngineBench:
    """The engine, its model, and everything that happened, sorted by work.

    Checks raise AssertionError; ``finish`` checks that nothing is left behind.
    """

    def __init__(
        self,
        script: Callable[[tuple[int, ...]], Sequence[int | Exception]] | Sequence[int | Exception] = tokens_for,
        *,
        info: ModelInfo = SCRIPTED_MODEL,
        config: EngineConfig | None = None,
        **model_fields: Any,
    ) -> None:
        self.clock = FakeClock()
        self.model = ScriptedRunner(script, info=info, end_id=END_ID, sleep=self.clock.sleep, **model_fields)
        self.config = replace(config or EngineConfig(), check_invariants=True)
        self.engine = GenerationRunner(self.model, self.config, clock=self.clock)
        self.events: dict[str, list[EngineEvent]] = {}

    def submit(self, *works: GenerateWork) -> None:
        for work in works:
            self.events.setdefault(work.id, [])
            self.engine.submit(work)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for event in self.engine.step():
                self.events[event.id].append(event)

    def finish(self, limit: int = 20_000) -> None:
        """Step until idle, then check that nothing is left behind."""
        for _ in range(limit):
            if self.engine.is_idle:
                break
            self.step()
        expect(self.engine.is_idle, "the engine did not come to rest")
        self.check_at_rest()

    def check_at_rest(self) -> None:
        self.engine.check()
        expect(not self.model.violations, "; ".join(self.model.violations))
        expect(self.model.open_rows == 0, "the model still holds rows")
        stats = self.engine.stats()
        expect(stats.active_sequences == stats.queue_depth == 0, "a slot or a queue place is still taken")
        expect(stats.kv_blocks_free + stats.kv_blocks_cached == stats.kv_blocks, "blocks are still in use")
        for id, events in self.events.items():
            terminals = [event for event in events if isinstance(event, (Finished, Failed))]
            expect(len(terminals) == 1, f"{id} has {len(terminals)} ends")
            expect(events[-1] is terminals[0], f"{id} has events after its end")

    def tokens(self, id: str) -> list[int]:
        return [token for event in self.events[id] if isinstance(event, Tokens) for token in event.token_ids]

    def finished(self, id: str) -> Finished:
        end = self.events[id][-1]
        if not isinstance(end, Finished):
            raise AssertionError(f"{id} ends with {end}")
        return end

    def failed(self, id: str) -> Failed:
        end = self.events[id][-1]
        if not isinstance(end, Failed):
            raise AssertionError(f"{id} ends with {end}")
        return end

    def prefill(self, id: str) -> PrefillDone:
        return next(event for event in self.events[id] if isinstance(event, PrefillDone))


def expect(condition: bool, message: str) -> None:
    """An assertion that also holds in an optimised run."""
    if not condition:
        raise AssertionError(message)
