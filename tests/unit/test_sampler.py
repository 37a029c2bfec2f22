"""The sampler as the runner uses it: seeds, greedy, forced tokens, constraints, log-probabilities, drafts, faults."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch

from mlxcel.core.errors import GenerationFailed
from mlxcel.core.ports import Constraint
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowResult, RowSpec
from mlxcel.runners.generate.sampler import Draw, Sampler

VOCAB = 3000
GREEDY = SamplingParams(temperature=0.0)
MIXED = (
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.3, top_p=0.9, xtc_probability=0.5, xtc_protected_ids=frozenset({1, 2})),
    SamplingParams(temperature=0.9, typical_p=0.9, repetition_penalty=1.2),
    SamplingParams(temperature=1.0, top_n_sigma=1.5, p_less=True, dynatemp_range=0.3),
    SamplingParams(temperature=1.0, top_k=700, min_p=0.01, dry_multiplier=0.8, logit_bias=((7, 3.0),)),
    SamplingParams(temperature=1.0, mirostat=1),
    SamplingParams(temperature=1.0, mirostat=2, frequency_penalty=0.3),
    SamplingParams(temperature=1.0, top_k=1500, top_p=0.99, min_keep=3),
    GREEDY,
)


class Allow(Constraint):
    """Allows a fixed set of tokens and records what it accepted."""

    def __init__(self, allowed: Iterable[int], refuse: Iterable[int] = (), words: int | None = None) -> None:
        self.allowed, self.refused, self.words = frozenset(allowed), frozenset(refuse), words
        self.accepted: list[int] = []

    def fill_mask(self, address: int, word_count: int) -> None:
        count = word_count if self.words is None else self.words
        words = (ctypes.c_uint32 * count).from_address(address)
        for index in range(count):
            words[index] = sum(1 << bit for bit in range(32) if index * 32 + bit in self.allowed)

    def accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return token_id not in self.refused

    def rollback(self, token_count: int) -> None:
        del self.accepted[len(self.accepted) - token_count :]

    @property
    def is_finished(self) -> bool:
        return False


def stream(length: int, salt: int = 0) -> torch.Tensor:
    """Logits [length, VOCAB] of one row's successive steps."""
    generator = torch.Generator().manual_seed(100 + salt)
    logits = torch.randn(length, VOCAB, generator=generator) * 2.0
    logits[:, :30] += 5.0
    return logits


def opened(params: SamplingParams, constraint: Constraint | None = None, vocab: int = VOCAB) -> Sampler:
    sampler = Sampler(vocab)
    sampler.open(RowSpec(0, (1, 2, 3), params, constraint))
    return sampler


def one(sampler: Sampler, logits: Sequence[float] | torch.Tensor, draw: Draw = Draw(0)) -> RowResult:  # noqa: B008
    row = torch.as_tensor(logits, dtype=torch.float32).clone()
    return sampler.sample(row.reshape(1, -1), [draw])[0]


def generate_alone(params: SamplingParams, logits: torch.Tensor) -> list[int]:
    sampler = opened(params)
    return [one(sampler, row).token_ids[0] for row in logits]


# ---- seeds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", range(len(MIXED)))
def test_a_seeded_row_draws_alike_alone_among_strangers_and_late(mine: int) -> None:
    params = replace(MIXED[mine], seed=1234)
    logits = stream(12)
    alone = generate_alone(params, logits)

    sampler = Sampler(VOCAB)
    for other in range(1, 10):  # strangers have run before, some leave and some join midway
        sampler.open(RowSpec(other, (9,) * other, replace(MIXED[(mine + other) % len(MIXED)], seed=other)))
    for step in range(3):
        sampler.sample(stream(9, salt=step), [Draw(other) for other in range(1, 10)])
    sampler.open(RowSpec(0, (1, 2, 3), params))
    among: list[int] = []
    for step, row in enumerate(logits):
        others = [other for other in range(1, 10) if (other + step) % 3]
        place = step % (len(others) + 1)
        draws = [Draw(other) for other in others]
        draws.insert(place, Draw(0))
        batch = stream(len(draws), salt=50 + step)
        batch[place] = row
        torch.rand(7)  # the global generator has no say
        among += sampler.sample(batch, draws)[place].token_ids
    assert among == alone


def test_seeds_differ_and_no_seed_is_fresh() -> None:
    logits = stream(20)
    params = SamplingParams(temperature=1.5)
    first, second = (generate_alone(replace(params, seed=seed), logits) for seed in (1, 2))
    assert first != second
    assert first == generate_alone(replace(params, seed=1), logits)
    assert len({tuple(generate_alone(params, logits)) for _ in range(5)}) == 5


@pytest.mark.parametrize("seed", [0, -1, 2**32 - 1, 2**64 - 1, 2**70 + 5])
def test_any_integer_is_a_seed(seed: int) -> None:
    logits = stream(4)
    params = SamplingParams(temperature=1.0, seed=seed)
    assert generate_alone(params, logits) == generate_alone(params, logits)


def test_a_row_opened_again_with_its_text_continues_its_stream() -> None:
    logits = stream(10)
    params = SamplingParams(temperature=1.2, top_k=50, repetition_penalty=1.3, dry_multiplier=0.8, seed=5)
    whole = generate_alone(params, logits)
    sampler = Sampler(VOCAB)
    sampler.open(RowSpec(8, (1, 2, 3, *whole[:4]), params))
    assert [one(sampler, row, Draw(8)).token_ids[0] for row in logits[4:]] == whole[4:]


# ---- greedy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=0.0, xtc_probability=1.0, xtc_threshold=0.0, p_less=True, typical_p=0.1, mirostat=2),
        SamplingParams(temperature=2.0, top_k=1),
    ],
)
def test_greedy_is_the_argmax_whatever_else_is_set(params: SamplingParams) -> None:
    logits = stream(6)
    assert generate_alone(params, logits) == logits.argmax(-1).tolist()


def test_greedy_heeds_bias_and_penalties() -> None:
    logits = [3.0, 2.9, 2.8, -1.0]
    assert one(opened(replace(GREEDY, logit_bias=((0, -math.inf),)), vocab=4), logits).token_ids == (1,)
    repetition = replace(GREEDY, repetition_penalty=2.0)
    assert one(opened(repetition, vocab=4), logits).token_ids == (0,)  # the prompt holds 1, 2 and 3
    sampler = opened(repetition, vocab=4)
    assert [one(sampler, [3.0, 2.9, 2.8, -1.0]).token_ids[0] for _ in range(2)] == [0, 0]
    assert one(opened(replace(GREEDY, presence_penalty=-5.0), vocab=4), logits).token_ids == (1,)


def test_ties_go_to_the_lowest_id() -> None:
    assert one(opened(GREEDY, vocab=4), [1.0, 2.0, 2.0, 2.0]).token_ids == (1,)


# ---- forced tokens and constraints --------------------------------------------------------------------------------


def test_a_forced_token_is_taken_and_counts() -> None:
    params = replace(GREEDY, repetition_penalty=3.0, repetition_context_tokens=1)
    sampler = opened(params, vocab=5)
    logits = [1.0, 0.9, 0.8, 0.7, 5.0]
    assert one(sampler, logits, Draw(0, forced_id=0)).token_ids == (0,)
    assert one(sampler, [2.0, 0.9, 0.8, 0.7, 0.0]).token_ids == (1,)  # 0 was just said


def test_a_forced_token_uses_up_its_position() -> None:
    logits = stream(5)
    params = SamplingParams(temperature=1.5, seed=3)
    free = generate_alone(params, logits)
    sampler = opened(params)
    forced = [one(sampler, logits[0]).token_ids[0], one(sampler, logits[1], Draw(0, forced_id=9)).token_ids[0]]
    forced += [one(sampler, row).token_ids[0] for row in logits[2:]]
    assert forced == [free[0], 9, *free[2:]]


@pytest.mark.parametrize("params", MIXED)
def test_a_constraint_masks_every_way_to_choose(params: SamplingParams) -> None:
    allowed = {500, 501, 2999}
    constraint = Allow(allowed)
    sampler = opened(replace(params, logit_bias=((3, 100.0),)), constraint)
    tokens = [one(sampler, row, Draw(0, constrained=True)).token_ids[0] for row in stream(8)]
    assert set(tokens) <= allowed
    assert constraint.accepted == tokens


def test_a_constraint_sleeps_until_the_draw_says_constrained() -> None:
    constraint = Allow({5})
    sampler = opened(GREEDY, constraint, vocab=10)
    logits = [9.0, *[0.0] * 9]
    assert one(sampler, logits).token_ids == (0,)
    assert constraint.accepted == []
    assert one(sampler, logits, Draw(0, constrained=True)).token_ids == (5,)
    assert one(sampler, logits, Draw(0, forced_id=7, constrained=True)).token_ids == (7,)
    assert constraint.accepted == [5, 7]


def test_masks_of_several_rows_do_not_mix() -> None:
    sampler = Sampler(100)
    for row in range(5):
        sampler.open(RowSpec(row, (), GREEDY, Allow({row * 20, 99})))
    logits = torch.zeros(5, 100)
    logits[:, 50] = 5.0
    draws = [Draw(row, constrained=row % 2 == 0) for row in range(5)]
    assert [result.token_ids[0] for result in sampler.sample(logits, draws)] == [0, 50, 40, 50, 80]


def test_tokens_beyond_the_mask_are_banned() -> None:
    """A padded vocabulary: the constraint writes two words, the logits have 100 columns."""
    sampler = opened(GREEDY, Allow({63}, words=2), vocab=100)
    logits = torch.arange(100.0)
    assert one(sampler, logits, Draw(0, constrained=True)).token_ids == (63,)


@pytest.mark.parametrize("vocab", [31, 32, 33, 70])
def test_any_vocabulary_size_can_be_masked(vocab: int) -> None:
    sampler = opened(GREEDY, Allow({vocab - 1}), vocab=vocab)
    assert one(sampler, torch.zeros(vocab), Draw(0, constrained=True)).token_ids == (vocab - 1,)


# ---- log-probabilities --------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = stream(1)
    params = SamplingParams(
        temperature=0.3, top_k=5, logit_bias=((9, 30.0),), repetition_penalty=1.5, seed=1, top_logprobs=4
    )
    result = one(opened(params), logits)
    reference = torch.log_softmax(logits[0].double(), -1)
    (entry,) = result.logprobs
    assert entry.token_id == result.token_ids[0] == 9
    assert entry.logprob == pytest.approx(float(reference[9]), abs=1e-5)
    best = torch.topk(reference, 4)
    assert [token for token, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_rows_get_as_many_logprobs_as_each_asked_for() -> None:
    sampler = Sampler(VOCAB)
    wanted = [-1, 0, 3, 20]
    for row, count in enumerate(wanted):
        sampler.open(RowSpec(row, (), SamplingParams(top_logprobs=count, seed=row)))
    results = sampler.sample(stream(4), [Draw(row) for row in range(4)])
    assert [len(result.logprobs) for result in results] == [0, 1, 1, 1]
    assert [len(result.logprobs[0].top) for result in results[1:]] == [0, 3, 20]


def test_a_forced_token_has_its_logprob_too() -> None:
    logits = stream(1)
    result = one(opened(replace(GREEDY, top_logprobs=0)), logits, Draw(0, forced_id=77))
    assert result.logprobs[0].logprob == pytest.approx(float(torch.log_softmax(logits[0], -1)[77]), abs=1e-4)


def test_more_logprobs_than_tokens_is_all_of_them() -> None:
    assert len(one(opened(replace(GREEDY, top_logprobs=20), vocab=5), torch.zeros(5)).logprobs[0].top) == 5


# ---- drafts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", MIXED)
@pytest.mark.parametrize("right", [0, 1, 3, 4])
def test_verification_gives_what_plain_decoding_gives(params: SamplingParams, right: int) -> None:
    params = replace(params, seed=21, top_logprobs=1)
    logits = stream(8)
    plain_sampler = opened(params)
    plain = [one(plain_sampler, row) for row in logits]
    tokens = [result.token_ids[0] for result in plain]
    draft = [token if i < right else (token + 1) % VOCAB for i, token in enumerate(tokens[:4])]
    sampler = opened(params)
    result = sampler.verify(logits[:5].clone(), Draw(0), draft)
    assert result.token_ids == tuple(tokens[: right + 1])
    assert [entry.logprob for entry in result.logprobs] == [r.logprobs[0].logprob for r in plain[: right + 1]]
    # The rejected drafts left no trace: the rest is drawn as if they had never been.
    rest = [one(sampler, row).token_ids[0] for row in logits[right + 1 :]]
    assert rest == tokens[right + 1 :]


def test_a_draft_token_is_kept_as_often_as_it_is_probable() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
    kept = 0
    for seed in range(2000):
        sampler = opened(SamplingParams(temperature=1.0, seed=seed), vocab=3)
        kept += len(sampler.verify(logits.clone(), Draw(0), [1]).token_ids) - 1
    expected = float(torch.softmax(logits[0], -1)[1])
    assert kept / 2000 == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 2000))


def test_verification_under_a_constraint() -> None:
    constraint = Allow({4, 5}, refuse={5})
    sampler = opened(GREEDY, constraint, vocab=6)
    logits = torch.zeros(4, 6)
    logits[:2, 4] = 1.0
    logits[2:, 5] = 1.0
    result = sampler.verify(logits, Draw(0, constrained=True), [4, 4, 4])
    assert result.token_ids == (4, 4)
    assert isinstance(result.error, GenerationFailed)
    assert constraint.accepted == [4, 4, 5]


def test_no_draft_is_one_plain_draw() -> None:
    logits = stream(1)
    assert opened(GREEDY).verify(logits.clone(), Draw(0), []).token_ids == (int(logits.argmax()),)


def test_a_forced_draft_is_refused() -> None:
    with pytest.raises(ValueError, match="forced"):
        opened(GREEDY).verify(stream(2), Draw(0, forced_id=1), [1])


# ---- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", MIXED)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("where", [slice(None), slice(5, 6), slice(2999, 3000)])
def test_logits_that_are_not_numbers_fail_their_row_alone(params: SamplingParams, poison: float, where: slice) -> None:
    sampler = Sampler(VOCAB)
    for row in range(3):
        sampler.open(RowSpec(row, (1, 2), replace(params, seed=row)))
    logits = stream(3)
    healthy = Sampler(VOCAB)
    healthy.open(RowSpec(2, (1, 2), replace(params, seed=2)))
    expected = healthy.sample(logits[2:].clone(), [Draw(2)])[0]
    logits[1, where] = poison
    results = sampler.sample(logits, [Draw(row) for row in range(3)])
    assert isinstance(results[1].error, GenerationFailed)
    assert "not finite" in results[1].error.message
    assert results[1].token_ids == ()
    assert results[0].error is None
    assert results[2] == expected


@pytest.mark.parametrize("params", MIXED)
def test_when_everything_is_banned_the_row_fails(params: SamplingParams) -> None:
    sampler = opened(params, Allow(()))
    result = one(sampler, stream(1), Draw(0, constrained=True))
    assert isinstance(result.error, GenerationFailed)
    assert "ban" in result.error.message


def test_a_constraint_that_raises_or_refuses_fails_its_row_alone() -> None:
    class Broken(Allow):
        def fill_mask(self, address: int, word_count: int) -> None:
            raise RuntimeError("broken matcher")

    class Stubborn(Allow):
        def accept(self, token_id: int) -> bool:
            raise RuntimeError("cannot advance")

    sampler = Sampler(10)
    for row, constraint in enumerate([Broken({1}), Allow({2}, refuse={2}), Allow({3}), Stubborn({4})]):
        sampler.open(RowSpec(row, (), GREEDY, constraint))
    results = sampler.sample(torch.zeros(4, 10), [Draw(row, constrained=True) for row in range(4)])
    assert [result.token_ids for result in results] == [(), (), (3,), ()]
    assert str(results[0].error) == "broken matcher"
    assert isinstance(results[1].error, GenerationFailed)
    assert str(results[3].error) == "cannot advance"


def test_misuse_raises() -> None:
    sampler = opened(GREEDY, vocab=4)
    with pytest.raises(KeyError):
        sampler.sample(torch.zeros(1, 4), [Draw(1)])
    for shape in ((1, 5), (2, 4), (4,)):
        with pytest.raises(ValueError, match="do not fit"):
            sampler.sample(torch.zeros(shape), [Draw(0)])
    sampler.close(0)
    sampler.close(0)
    with pytest.raises(KeyError):
        sampler.sample(torch.zeros(1, 4), [Draw(0)])
    assert sampler.sample(torch.zeros(0, 4), []) == []


def test_a_prompt_may_hold_ids_without_logits() -> None:
    params = replace(GREEDY, repetition_penalty=2.0, frequency_penalty=1.0, dry_multiplier=9.0, dry_allowed_length=1)
    sampler = Sampler(4)
    sampler.open(RowSpec(0, (2, -7, 2, 999_999, 2, 3, 2), params))
    assert one(sampler, [1.0, 0.5, 9.0, 9.5]).token_ids == (0,)


def test_a_tiny_vocabulary_works_every_way() -> None:
    for vocab in (1, 2, 5):
        for params in MIXED:
            assert (
                one(opened(replace(params, xtc_protected_ids=frozenset({0, 4})), vocab=vocab), torch.zeros(vocab)).error
                is None
            )


def test_a_row_id_may_be_used_again() -> None:
    sampler = opened(SamplingParams(temperature=1.0, logit_bias=((3, 100.0),)), vocab=8)
    assert one(sampler, torch.zeros(8)).token_ids == (3,)
    sampler.close(0)
    sampler.open(RowSpec(0, (), SamplingParams(temperature=1.0, logit_bias=((5, 100.0),))))
    assert one(sampler, torch.zeros(8)).token_ids == (5,)
