"""Penalty histories against plain recounts: token counts in a window, and DRY by brute force over the whole context."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowSpec
from mlxcel.runners.generate.sampler import adjust
from mlxcel.runners.generate.sampler.history import DryMatcher, TokenCounts
from mlxcel.runners.generate.sampler.row import Row
from mlxcel.runners.generate.sampler.settings import Batch

few_tokens = st.lists(st.integers(0, 4), max_size=60)


@given(few_tokens, few_tokens, st.sampled_from([-1, 1, 2, 5, 64]))
@settings(max_examples=150, deadline=None)
def test_counts_are_those_of_the_window(prompt: list[int], generated: list[int], window: int) -> None:
    counts = TokenCounts(prompt, window)
    context = list(prompt)
    for token in [*generated, None]:
        expected = Counter(context[-window:] if window > 0 else context)
        assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == expected
        if token is not None:
            counts.push(token)
            context.append(token)


def test_counts_grow_past_their_first_capacity() -> None:
    counts = TokenCounts([], -1)
    for token in range(1000):
        counts.push(token)
    assert counts.ids.tolist() == list(range(1000))
    assert counts.counts.tolist() == [1.0] * 1000


def dry_by_brute_force(context: Sequence[int], params: SamplingParams) -> dict[int, float]:
    """The definition, followed literally: compare the end of the context with every earlier place."""
    window = len(context) if params.dry_penalty_last_n <= 0 else min(params.dry_penalty_last_n, len(context))
    tail = list(context[len(context) - window :])
    breakers = [(token,) for token in params.dry_breaker_ids] + list(params.dry_breaker_sequences)
    # Only tokens after the breaker that starts last count as repeated; of those that start there, the longest.
    reach = window
    for start in range(window - 1, -1, -1):
        fits = [b for b in breakers if b and tuple(tail[start : start + len(b)]) == tuple(b)]
        if fits:
            reach = window - start - max(len(b) for b in fits)
            break
    longest: dict[int, int] = {}
    if window > params.dry_allowed_length and reach >= params.dry_allowed_length:
        for end in range(window - 1):  # the earlier run ends here, tail[end + 1] went on
            run = 0
            while run <= end and tail[end - run] == tail[window - 1 - run]:
                run += 1
            run = min(run, reach)
            if run >= params.dry_allowed_length:
                follower = tail[end + 1]
                longest[follower] = max(longest.get(follower, 0), run)
    return {
        token: params.dry_multiplier * params.dry_base ** (run - params.dry_allowed_length)
        for token, run in longest.items()
        if token not in params.dry_breaker_ids
    }


dry_params = st.builds(
    SamplingParams,
    dry_multiplier=st.sampled_from([0.8, 2.0]),
    dry_base=st.sampled_from([1.0, 1.75]),
    dry_allowed_length=st.integers(1, 4),
    dry_penalty_last_n=st.sampled_from([-1, 0, 6, 20]),
    dry_breaker_ids=st.frozensets(st.integers(0, 3), max_size=1),
    dry_breaker_sequences=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=3).map(tuple), max_size=2).map(tuple),
)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=25), dry_params)
@settings(max_examples=300, deadline=None)
def test_dry_equals_brute_force(prompt: list[int], generated: list[int], params: SamplingParams) -> None:
    matcher = DryMatcher(prompt, params)
    context = list(prompt)
    for token in [*generated, None]:
        ids, penalties = matcher.penalties()
        expected = dry_by_brute_force(context, params)
        assert ids.tolist() == sorted(expected)
        assert penalties.tolist() == pytest.approx([expected[token] for token in sorted(expected)], rel=1e-6)
        if token is not None:
            matcher.push(token)
            context.append(token)


def test_dry_punishes_more_the_longer_the_repeat() -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    matcher = DryMatcher([1, 2, 3, 4, 5, 9, 1, 2], params)
    assert [values.tolist() for values in matcher.penalties()] == [[3], [1.0]]
    matcher.push(3)
    assert [values.tolist() for values in matcher.penalties()] == [[4], [2.0]]
    matcher.push(7)
    assert matcher.penalties()[0].tolist() == []


def test_a_breaker_of_several_tokens_ends_the_repeat() -> None:
    context = [1, 2, 8, 9, 3, 4, 5, 1, 2, 8, 9, 3, 4]
    free = SamplingParams(dry_multiplier=1.0, dry_allowed_length=3)
    assert DryMatcher(context, free).penalties()[0].tolist() == [5]
    broken = SamplingParams(dry_multiplier=1.0, dry_allowed_length=3, dry_breaker_sequences=((8, 9),))
    assert DryMatcher(context, broken).penalties()[0].tolist() == []


def test_of_breakers_that_start_together_the_longest_counts() -> None:
    context = [1, 2, 8, 9, 6, 3, 4, 5, 1, 2, 8, 9, 6, 3, 4]
    for breakers, punished in (
        (((8, 9),), [5]),  # three tokens since
        (((8, 9), (8, 9, 6)), []),  # two
        (((8, 9, 6), (8, 9)), []),
    ):
        params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=3, dry_breaker_sequences=breakers)
        assert DryMatcher(context, params).penalties()[0].tolist() == punished


adjusting = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, -0.3]),
    repetition_context_tokens=st.sampled_from([-1, 0, 3, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    dry_allowed_length=st.just(1),
    logit_bias=st.sampled_from([(), ((1, 2.5), (4, -math.inf), (1, -1.0)), ((3, 0.1),)]),
)


@given(st.lists(st.tuples(adjusting, few_tokens), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_each_row_is_adjusted_by_its_own_settings(rows: list[tuple[SamplingParams, list[int]]], seed: int) -> None:
    vocab = 8
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed))
    opened = [Row.of(RowSpec(number, tuple(prompt), params), vocab) for number, (params, prompt) in enumerate(rows)]
    batch = Batch.of(opened, vocab, torch.device("cpu"))
    after = logits.clone()
    adjust.add_bias(after, batch)
    adjust.penalise_counts(after, batch)
    adjust.penalise_repeats(after, batch)
    for row, (params, prompt) in enumerate(rows):
        x = logits[row].tolist()
        for token, value in params.logit_bias:
            x[token] += value
        window = params.repetition_context_tokens
        for token, times in Counter(prompt if window < 0 else prompt[max(len(prompt) - window, 0) :]).items():
            x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
            x[token] -= times * params.frequency_penalty + params.presence_penalty
        if params.dry_multiplier:
            for token, penalty in dry_by_brute_force(prompt, params).items():
                x[token] -= penalty
        assert after[row].tolist() == pytest.approx(x, rel=1e-4, abs=1e-5)


def test_endless_repeats_stay_finite_and_fast() -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_base=4.0)
    matcher = DryMatcher([7] * 20_000, params)
    matcher.push(7)
    ids, penalties = matcher.penalties()
    assert ids.tolist() == [7]
    assert np.isfinite(penalties).all()
