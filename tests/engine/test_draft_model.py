"""A draft model: what it proposes, what it holds, and that the answer stays the served model's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlxcel.core.errors import StartupError
from mlxcel.core.events import Failed, Finished, FinishReason, Tokens
from mlxcel.core.ports import ModelRunner
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import GenerateWork, RowResult, StepPlan, StepResult
from mlxcel.engine.config import EngineConfig
from mlxcel.engine.draft import DraftBalance, DraftWish
from mlxcel.engine.draft_model import ModelDrafter
from mlxcel.engine.generation import GenerationRunner
from mlxcel.runners.generate.build import build_runner
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.clock import FakeClock
from mlxcel.testing.engine_bench import END_ID, make_work, small_model, tokens_for
from mlxcel.testing.scripted_runner import SCRIPTED_MODEL, ScriptedRunner
from mlxcel.testing.tiny_models import write_tiny_checkpoint

NONE: frozenset[int] = frozenset()
PLAIN = EngineConfig(check_invariants=True)
OPTIONS = RunnerOptions(dtype="fp32", max_rows=4, kv_block_count=96, kernels="off")


class Follower:
    """A draft model that goes on as the served script does, as far as ``wrong_every`` lets it."""

    def __init__(self, wrong_every: int = 0, info: Any = SCRIPTED_MODEL) -> None:
        self.info = info
        self.contents: dict[int, int] = {}  # slot of the pool -> token
        self.tables: dict[int, list[int]] = {}
        self.fed_tokens = 0
        self.steps = 0
        self.is_shut_down = False
        self.fault: Exception | None = None
        self.prompts: dict[tuple[int, ...], Sequence[int | Exception]] = {}
        self._wrong_every = wrong_every

    def open(self, row: Any) -> None:
        if len(self.tables) >= self.info.max_rows:
            raise MemoryError("no free row")
        self.tables[row.row_id] = []

    def close(self, row_id: int) -> None:
        self.tables.pop(row_id, None)

    def run(self, plan: StepPlan) -> StepResult:
        if self.fault is not None:
            raise self.fault
        self.steps += 1
        results = []
        for step in plan.rows:
            table = self.tables[step.row_id]
            table += step.new_blocks
            self.fed_tokens += len(step.token_ids)
            for place, token_id in enumerate(step.token_ids, start=step.position):
                self.contents[self._slot(table, place)] = token_id
            if not step.sample:
                results.append(RowResult(step.row_id))
                continue
            end = step.position + len(step.token_ids)
            context = tuple(self.contents[self._slot(table, place)] for place in range(end))
            results.append(RowResult(step.row_id, (self._next(context),)))
        return StepResult(tuple(results))

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _slot(self, table: list[int], place: int) -> int:
        size: int = self.info.block_tokens
        return table[place // size] * size + place % size

    def _next(self, context: tuple[int, ...]) -> int:
        for prompt_ids, script in self.prompts.items():
            if context[: len(prompt_ids)] == prompt_ids:
                place = len(context) - len(prompt_ids)
                token = script[place] if place < len(script) else END_ID
                if isinstance(token, int) and not (self._wrong_every and place % self._wrong_every == 0):
                    return token
        return 3


def serve(
    works: Sequence[GenerateWork], follower: Follower | None, script: Any = tokens_for, config: EngineConfig = PLAIN
) -> tuple[dict[str, list[int]], dict[str, Finished], ScriptedRunner, GenerationRunner]:
    clock = FakeClock()
    model = ScriptedRunner(
        script, end_id=END_ID, step_s=0.01, decode_row_s=0.001, prefill_token_s=0.0002, sleep=clock.sleep
    )
    engine = GenerationRunner(model, config, draft_model=follower, clock=clock)  # type: ignore[arg-type]
    tokens: dict[str, list[int]] = {work.id: [] for work in works}
    ends: dict[str, Finished] = {}
    for work in works:
        if follower is not None:
            follower.prompts[work.prompt_ids] = script(work.prompt_ids) if callable(script) else script
        engine.submit(work)
    for _ in range(5000):
        if engine.is_idle:
            break
        for event in engine.step():
            if isinstance(event, Tokens):
                tokens[event.id] += event.token_ids
            elif isinstance(event, Finished):
                ends[event.id] = event
            elif isinstance(event, Failed):
                raise event.error
    engine.check()
    assert not model.violations
    if follower is not None:
        assert not follower.tables, "the draft model still holds rows"
    return tokens, ends, model, engine


def works(count: int = 3, **fields: Any) -> list[GenerateWork]:
    prompts = [range(50 + 7 * place, 80 + 9 * place) for place in range(count)]
    return [make_work(f"w{place}", prompt=prompt, max_tokens=60, **fields) for place, prompt in enumerate(prompts)]


@pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 5])
def test_the_answer_is_the_same_however_good_the_drafts_are(wrong_every: int) -> None:
    plain, *_ = serve(works(), None)
    drafted, ends, model, _ = serve(works(), Follower(wrong_every))
    assert drafted == plain
    drafts = [end.timings.draft for end in ends.values()]
    assert all(draft is not None and draft.kind == "draft-model" for draft in drafts)
    if not wrong_every:
        assert len(model.plans) < 35  # 60 tokens a row
    if wrong_every == 1:
        assert all(draft is not None and draft.accepted_tokens == 0 for draft in drafts)


@pytest.mark.parametrize("draft_tokens", [1, 2, 9])
def test_the_length_of_proposals_is_the_operators(draft_tokens: int) -> None:
    plain, *_ = serve(works(), None)
    drafted, _, model, engine = serve(works(), Follower(), config=replace(PLAIN, draft_tokens=draft_tokens))
    assert drafted == plain
    assert max(len(step.draft_ids) for plan in model.plans for step in plan.rows) == draft_tokens
    assert engine.stats().draft_tokens == draft_tokens


def test_rejected_guesses_are_computed_anew_and_nothing_twice() -> None:
    follower = Follower(wrong_every=3)
    drafter = ModelDrafter(follower, 1000)  # type: ignore[arg-type]
    script = list(range(200, 260))
    follower.prompts[(1, 2, 3)] = script
    tokens = [1, 2, 3]
    assert drafter.propose([DraftWish(1, tokens, 3, NONE)]) == [(3, 201, 202)]  # wrong at its very first token
    tokens.append(200)
    assert drafter.propose([DraftWish(1, tokens, 4, NONE)]) == [(201, 202, 3, 204)]
    assert follower.fed_tokens == (3 + 2) + (1 + 3)
    tokens += [201, 202, 203]
    assert drafter.propose([DraftWish(1, tokens, 2, NONE)]) == [(204, 205)]
    assert follower.fed_tokens == 9 + (1 + 1)
    tokens += [204, 205, 206]  # all accepted: the last guess has no state yet
    drafter.propose([DraftWish(1, tokens, 1, NONE)])
    assert follower.fed_tokens == 11 + 2


def test_proposals_end_before_a_stop_token_and_before_ids_the_model_lacks() -> None:
    follower = Follower()
    follower.prompts[(1, 2)] = [10, 11, 12, 999]
    assert ModelDrafter(follower, 1000).propose([DraftWish(1, [1, 2], 5, frozenset({12}))]) == [(10, 11)]  # type: ignore[arg-type]
    assert ModelDrafter(follower, 999).propose([DraftWish(2, [1, 2], 5, NONE)]) == [(10, 11, 12)]  # type: ignore[arg-type]


def test_long_contexts_are_taken_in_over_several_steps() -> None:
    follower = Follower(info=small_model(block_count=256, context_tokens=4096))
    drafter = ModelDrafter(follower, 1000)  # type: ignore[arg-type]
    tokens = list(range(1300))
    follower.prompts[tuple(tokens)] = [5, 6, 7]
    answers = [drafter.propose([DraftWish(1, tokens, 2, NONE), DraftWish(2, tokens[:40], 2, NONE)]) for _ in range(3)]
    assert [len(first) for first, _ in answers] == [0, 0, 2]
    assert len(answers[2][1]) == 2
    assert follower.fed_tokens < 1300 + 40 + 10


def test_rows_beyond_the_pool_or_the_window_go_without_drafts() -> None:
    follower = Follower(info=small_model(block_count=4, context_tokens=40))
    drafter = ModelDrafter(follower, 1000)  # type: ignore[arg-type]
    assert drafter.propose([DraftWish(1, list(range(39)), 2, NONE)]) == [()]  # longer than the window
    assert len(drafter.propose([DraftWish(2, list(range(30)), 2, NONE)])[0]) == 2
    assert drafter.propose([DraftWish(3, list(range(36)), 2, NONE)]) == [()]  # three blocks, two are left
    drafter.forget(2)
    assert len(drafter.propose([DraftWish(3, list(range(36)), 2, NONE)])[0]) == 2
    drafter.forget(3)
    drafter.forget(3)
    assert sorted(drafter._free_blocks) == [0, 1, 2, 3]


def test_a_draft_model_that_breaks_is_left_out() -> None:
    follower = Follower()
    plain, *_ = serve(works(), None)
    follower.fault = RuntimeError("no such device")
    drafted, ends, *_ = serve(works(), follower)
    assert drafted == plain
    assert all(end.timings.draft is None for end in ends.values())


def test_a_cancel_and_the_end_of_the_engine_free_the_draft_rows() -> None:
    follower = Follower()
    engine = GenerationRunner(ScriptedRunner(tokens_for, end_id=END_ID), PLAIN, draft_model=follower)  # type: ignore[arg-type]
    for work in works(2):
        follower.prompts[work.prompt_ids] = tokens_for(work.prompt_ids)
        engine.submit(work)
    while not follower.steps:
        engine.step()
    assert len(follower.tables) == 2
    engine.cancel("w0")
    assert len(follower.tables) == 1
    engine.close()
    assert follower.is_shut_down


def test_models_that_cannot_step_back_are_refused() -> None:
    stateful = ScriptedRunner(tokens_for, info=small_model(state="snapshot", block_count=0, supports_drafts=False))
    with pytest.raises(StartupError, match="cannot draft"):
        GenerationRunner(ScriptedRunner(tokens_for), PLAIN, draft_model=stateful)
    with pytest.raises(StartupError, match="cannot verify"):
        GenerationRunner(stateful, PLAIN, draft_model=ScriptedRunner(tokens_for))


def test_credit_lets_a_drafter_invest_before_it_has_to_pay() -> None:
    balance = DraftBalance(credit_steps=64)
    for _ in range(30):
        balance.observe(decode_rows=1, accepted_tokens=0, drafted=False, step_s=1.0, plain_step_s=1.0, draft_s=2.0)
    assert balance.allows(1)
    for _ in range(10):
        balance.observe(decode_rows=1, accepted_tokens=0, drafted=False, step_s=1.0, plain_step_s=1.0, draft_s=2.0)
    assert not balance.allows(1)


# ---- real models ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ModelRunner]:
    folder = tmp_path_factory.mktemp("drafts")
    for name, seed, layers in (("target", 0, 2), ("same", 0, 2), ("other", 1, 1)):
        write_tiny_checkpoint("llama", folder / name, seed=seed, num_hidden_layers=layers)

    def build(name: str, **fields: Any) -> ModelRunner:
        return build_runner(open_checkpoint(folder / name), replace(OPTIONS, **fields))

    return build


@pytest.fixture
def exact(load: Callable[..., ModelRunner]) -> Callable[..., ModelRunner]:
    """Models on the compiled kernels, whose rows do not depend on one another's number."""

    def build(name: str) -> ModelRunner:
        runner = load(name, kernels="auto")
        if not runner.verifies_exactly():
            pytest.skip("the compiled kernels are not there")
        return runner

    return build


def answers(
    load: Callable[..., ModelRunner], draft: str | None, sampling: SamplingParams, count: int = 3, max_tokens: int = 48
) -> tuple[list[list[int]], list[Finished], list[tuple[float, ...]]]:
    engine = GenerationRunner(
        load("target"), EngineConfig(max_rows=4), draft_model=None if draft is None else load(draft), clock=FakeClock()
    )
    tokens: dict[str, list[int]] = {}
    logprobs: dict[str, list[float]] = {}
    ends: list[Finished] = []
    for place in range(count):
        prompt_ids = tuple(20 + (place * 31 + step * 17) % 400 for step in range(9 + 5 * place))
        seed = None if sampling.seed is None else sampling.seed + place
        engine.submit(GenerateWork(f"w{place}", prompt_ids, max_tokens, replace(sampling, seed=seed)))
    while not engine.is_idle:
        for event in engine.step():
            if isinstance(event, Tokens):
                tokens.setdefault(event.id, []).extend(event.token_ids)
                logprobs.setdefault(event.id, []).extend(item.logprob for item in event.logprobs)
            elif isinstance(event, Finished):
                ends.append(event)
    engine.check()
    order = sorted(tokens)
    return [tokens[id] for id in order], ends, [tuple(logprobs.get(id, ())) for id in order]


SETTINGS = {
    "greedy": SamplingParams(temperature=0.0, top_logprobs=1),
    "greedy with penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4, dry_multiplier=0.8
    ),
    "seeded": SamplingParams(temperature=0.7, top_k=5, seed=11),
    "seeded, penalties and XTC": SamplingParams(
        temperature=0.6, presence_penalty=0.5, xtc_probability=0.4, xtc_threshold=0.05, seed=3
    ),
    "mirostat": SamplingParams(temperature=0.8, mirostat=2, mirostat_tau=2.0, seed=5),
    "biased": SamplingParams(temperature=0.0, logit_bias=((17, 4.0), (40, float("-inf")))),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("draft", ["same", "other"])
def test_exact_verification_leaves_any_text_as_it_is(exact: Callable[..., ModelRunner], draft: str, name: str) -> None:
    plain, _, plain_logprobs = answers(exact, None, SETTINGS[name])
    drafted, _, logprobs = answers(exact, draft, SETTINGS[name])
    assert drafted == plain
    assert logprobs == plain_logprobs


@pytest.mark.parametrize("name", ["greedy", "greedy with penalties", "seeded", "biased"])
@pytest.mark.parametrize("draft", ["same", "other"])
def test_plain_torch_differs_by_rounding_at_most(load: Callable[..., ModelRunner], draft: str, name: str) -> None:
    plain, *_ = answers(load, None, SETTINGS[name])
    drafted, ends, _ = answers(load, draft, SETTINGS[name])
    assert drafted == plain
    stats = [end.timings.draft for end in ends]
    assert all(draft is not None and draft.rounds for draft in stats)
    if (draft, name) == ("same", "greedy"):
        assert all(draft is not None and draft.accepted_tokens == draft.drafted_tokens for draft in stats)


def test_logprobs_are_those_of_plain_decoding(load: Callable[..., ModelRunner]) -> None:
    sampling = SamplingParams(temperature=0.0, top_logprobs=2)
    plain_ids, _, plain = answers(load, None, sampling)
    ids, _, drafted = answers(load, "same", sampling)
    assert ids == plain_ids
    assert all(len(row) == len(tokens) for row, tokens in zip(drafted, ids, strict=True))
    np.testing.assert_allclose(np.concatenate(drafted), np.concatenate(plain), atol=1e-4)
    assert min(np.concatenate(drafted)) < -0.01  # and none is made up


def test_the_distribution_is_that_of_plain_decoding(load: Callable[..., ModelRunner]) -> None:
    """Fourth tokens of many unseeded works, half of them drafted; chi-square over the tokens that occur."""
    sampling = SamplingParams(temperature=0.9, top_k=3)
    counts = [dict.fromkeys(range(1), 0) for _ in range(2)]
    for place, draft in enumerate((None, "other")):
        engine = GenerationRunner(
            load("target", max_rows=16), EngineConfig(max_rows=16, max_queue_depth=1000),
            draft_model=None if draft is None else load(draft, max_rows=16), clock=FakeClock(),
        )
        for number in range(400):
            engine.submit(GenerateWork(str(number), tuple(range(30, 41)), 4, sampling))
        tokens: dict[str, list[int]] = {}
        while not engine.is_idle:
            for event in engine.step():
                if isinstance(event, Tokens):
                    tokens.setdefault(event.id, []).extend(event.token_ids)
        for ids in tokens.values():
            counts[place][ids[3]] = counts[place].get(ids[3], 0) + 1
    common = [token for token in counts[0] | counts[1] if sum(count.get(token, 0) for count in counts) >= 20]
    table = np.array([[count.get(token, 0) for token in common] for count in counts], dtype=float)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    freedom = len(common) - 1
    statistic = float(((table - expected) ** 2 / expected).sum())
    assert freedom >= 3
    assert statistic < freedom + 4.5 * (2 * freedom) ** 0.5  # the 99.99 % point or beyond


def test_max_tokens_holds_inside_a_burst_of_real_drafts(load: Callable[..., ModelRunner]) -> None:
    for max_tokens in (1, 2, 3, 7):
        drafted, ends, _ = answers(load, "same", SamplingParams(temperature=0.0), max_tokens=max_tokens)
        assert [len(ids) for ids in drafted] == [max_tokens] * 3
        assert all(end.reason is FinishReason.LENGTH for end in ends)
