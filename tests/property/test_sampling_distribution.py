"""What the whole chain draws, against a one-row float64 reference: support and, by chi-square, frequencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import RowSpec
from mlxcel.runners.generate.sampler import Draw, Sampler

Array = npt.NDArray[np.float64]

VOCAB = 40
ROWS = 64
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 1, 4, 1)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    total: Array = e / e.sum()
    return total


def adjusted(x: Array, params: SamplingParams, context: Sequence[int]) -> Array:
    """Bias, then the count penalties over the last tokens."""
    x = x.copy()
    for token, value in params.logit_bias:
        if token < len(x):
            x[token] += value
    window = params.repetition_context_tokens
    counted = Counter(context if window < 0 else context[len(context) - min(window, len(context)) :])
    for token, times in counted.items():
        x[token] = x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        x[token] -= times * params.frequency_penalty + params.presence_penalty
    return x


def truncated(x: Array, params: SamplingParams) -> Array:
    """Top-n-sigma, p-less, typical, top-k, top-p and min-p, in that order; cut tokens are -inf."""
    x = x.copy()
    if params.top_n_sigma >= 0:
        alive = x[x > -np.inf]
        x[x < alive.max() - params.top_n_sigma * alive.std()] = -np.inf
    if params.p_less:
        p = softmax(x / params.temperature)
        x[(p < (p**2).sum()) & (x < x.max())] = -np.inf
    if params.typical_p < 1:
        p = softmax(x)
        alive_ids = np.flatnonzero(p > 0)
        surprise = -np.log(p[alive_ids])
        order = alive_ids[np.argsort(np.abs(surprise - (p[alive_ids] * surprise).sum()), kind="stable")]
        before = np.cumsum(p[order]) - p[order]
        x[np.setdiff1d(np.arange(len(x)), order[before <= params.typical_p])] = -np.inf
    order = np.argsort(-x, kind="stable")
    if params.top_k > 0:
        x[order[max(params.top_k, params.min_keep) :]] = -np.inf
    if params.top_p < 1:
        p = softmax(x)[order]
        before = np.cumsum(p) - p
        x[order[(before >= params.top_p) & (np.arange(len(x)) >= max(1, params.min_keep))]] = -np.inf
    if params.min_p > 0:
        rank = np.argsort(order)
        x[(x < x.max() + math.log(params.min_p)) & (rank >= max(1, params.min_keep))] = -np.inf
    return x


def distribution(x: Array, params: SamplingParams, context: Sequence[int]) -> Array:
    """Probabilities of the next token; XTC mixes the two ways its chance can fall."""
    x = truncated(adjusted(x, params, context), params)

    def tempered(values: Array) -> Array:
        temperature = params.temperature
        alive = softmax(values)
        alive = alive[alive > 0]
        if params.dynatemp_range > 0 and len(alive) > 1:
            low = max(0.0, temperature - params.dynatemp_range)
            share = -(alive * np.log(alive)).sum() / math.log(len(alive))
            temperature = low + (temperature + params.dynatemp_range - low) * share**params.dynatemp_exponent
        return softmax(values / temperature)

    struck = x.copy()
    p = softmax(x)
    over = [token for token in np.argsort(-x, kind="stable") if p[token] >= params.xtc_threshold]
    for token in over[:-1]:
        if token not in params.xtc_protected_ids:
            struck[token] = -np.inf
    mixed: Array = params.xtc_probability * tempered(struck) + (1 - params.xtc_probability) * tempered(x)
    return mixed


CASES = {
    "plain": SamplingParams(temperature=1.0),
    "hot": SamplingParams(temperature=1.7),
    "cold": SamplingParams(temperature=0.35),
    "server defaults": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "top-k": SamplingParams(temperature=1.2, top_k=5),
    "top-p": SamplingParams(temperature=1.0, top_p=0.7),
    "min-p": SamplingParams(temperature=1.5, min_p=0.1),
    "truncation before temperature": SamplingParams(temperature=3.0, top_p=0.8, min_p=0.08),
    "top-n-sigma": SamplingParams(temperature=1.3, top_n_sigma=1.2),
    "p-less": SamplingParams(temperature=1.1, p_less=True),
    "typical": SamplingParams(temperature=1.0, typical_p=0.6),
    "typical then top-k": SamplingParams(temperature=1.0, typical_p=0.8, top_k=3),
    "xtc": SamplingParams(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.08),
    "xtc protects": SamplingParams(
        temperature=1.0, xtc_probability=1.0, xtc_threshold=0.05, xtc_protected_ids=frozenset({0, 1, 7})
    ),
    "xtc after top-k": SamplingParams(temperature=1.0, top_k=6, xtc_probability=0.7, xtc_threshold=0.1),
    "dynatemp": SamplingParams(temperature=1.0, dynatemp_range=0.6, dynatemp_exponent=1.3),
    "dynatemp after top-p": SamplingParams(temperature=0.9, top_p=0.9, dynatemp_range=0.9),
    "bias": SamplingParams(temperature=1.0, logit_bias=((0, -math.inf), (5, 2.0), (5, 1.0), (999, 5.0))),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.5, repetition_context_tokens=8),
    "frequency and presence": SamplingParams(
        temperature=1.0, frequency_penalty=0.4, presence_penalty=-0.7, repetition_context_tokens=-1
    ),
    "penalties off": SamplingParams(temperature=1.0, repetition_penalty=1.5, repetition_context_tokens=0),
    "min-keep": SamplingParams(temperature=1.0, top_k=2, top_p=0.1, min_p=0.9, min_keep=4),
    "everything": SamplingParams(
        temperature=0.9,
        top_k=12,
        top_p=0.95,
        min_p=0.02,
        typical_p=0.97,
        top_n_sigma=2.5,
        xtc_probability=0.3,
        xtc_threshold=0.15,
        dynatemp_range=0.2,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        logit_bias=((2, 1.0),),
    ),
}


def logits_row() -> Array:
    random = np.random.default_rng(11)
    row: Array = np.sort(random.normal(size=VOCAB) * 1.6)[::-1].copy()
    random.shuffle(row[:20])
    return row.astype(np.float32).astype(np.float64)


def draw_many(params: SamplingParams, x: Array, steps: int = 40, strangers: bool = False) -> npt.NDArray[np.int64]:
    """Counts of the first token of ROWS * steps rows with different seeds; with strangers, of every other row."""
    vocab = len(x)
    counts = np.zeros(vocab, dtype=np.int64)
    others = list(CASES.values())
    for step in range(steps):
        sampler = Sampler(vocab)
        draws = []
        for row in range(ROWS):
            mine = not strangers or row % 2 == 0
            settings = params if mine else others[row % len(others)]
            sampler.open(RowSpec(row, PROMPT, _seeded(settings, 1 + step * ROWS + row)))
            draws.append(Draw(row))
        results = sampler.sample(torch.from_numpy(np.tile(x, (ROWS, 1))).float(), draws)
        for row, result in enumerate(results):
            assert result.error is None
            if not strangers or row % 2 == 0:
                counts[result.token_ids[0]] += 1
    return counts


def _seeded(params: SamplingParams, seed: int) -> SamplingParams:
    fields = {name: getattr(params, name) for name in params.__slots__}
    return SamplingParams(**(fields | {"seed": seed}))


def assert_follows(counts: npt.NDArray[np.int64], expected: Array) -> None:
    """Pearson's test at about six standard deviations of the statistic; rare tokens are pooled."""
    total = counts.sum()
    assert counts[expected == 0].sum() == 0, "a token that was cut was drawn"
    rare = expected * total < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum()) * total
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = max(len(wanted) - 1, 1)
    assert statistic < freedom + 6 * math.sqrt(2 * freedom) + 6, (observed, wanted)


@pytest.mark.parametrize("name", CASES)
def test_frequencies(name: str) -> None:
    x = logits_row()
    assert_follows(draw_many(CASES[name], x), distribution(x, CASES[name], PROMPT))


@pytest.mark.parametrize("name", ["server defaults", "top-p", "xtc protects", "everything"])
def test_frequencies_in_a_mixed_batch(name: str) -> None:
    x = logits_row()
    assert_follows(draw_many(CASES[name], x, strangers=True), distribution(x, CASES[name], PROMPT))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_p=0.99999),
        SamplingParams(temperature=1.0, top_k=500),
        SamplingParams(temperature=1.0, top_k=1500, top_p=0.95, min_p=0.001),
        SamplingParams(temperature=1.0, min_keep=90, top_p=0.1),
        SamplingParams(temperature=1.0, typical_p=0.9),
    ],
)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_survivors_beyond_the_windows(params: SamplingParams, scale: float) -> None:
    """Nuclei of a flat distribution over 3000 tokens hold more than either window of best tokens."""
    random = np.random.default_rng(5)
    x = (random.normal(size=3000) * scale).astype(np.float32).astype(np.float64)
    expected = distribution(x, params, PROMPT)
    # Tokens that rounding may move across the boundary weigh next to nothing.
    counts = draw_many(params, x, steps=16)
    assert counts[expected == 0].sum() <= 3
    counts[expected == 0] = 0
    order = np.argsort(-expected)
    groups = np.array_split(order[expected[order] > 0], 12)
    assert_follows(
        np.array([counts[group].sum() for group in groups]),
        np.array([expected[group].sum() for group in groups]) / expected.sum(),
    )


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_follows_its_own_rule_and_reaches_its_target(version: int) -> None:
    """Replays the running limit in float64: no token lies outside it, and the mean surprise comes to tau bits."""
    vocab, tau, eta, temperature = 2000, 3.0, 0.1, 0.9
    settings = SamplingParams(
        temperature=temperature, mirostat=version, mirostat_tau=tau, mirostat_eta=eta, top_k=1, p_less=True, seed=9
    )
    sampler = Sampler(vocab)
    sampler.open(RowSpec(0, (1, 2), settings))
    random = np.random.default_rng(3)
    x = (-1.2 * np.log(np.arange(1, vocab + 1)) + random.normal(size=vocab) * 0.1).astype(np.float32)
    p = softmax(x.astype(np.float64) / temperature)
    ranked = np.sort(p)[::-1]
    steps = np.log(np.arange(2, 101) / np.arange(1, 100))
    zipf = (steps * np.log(ranked[:99] / ranked[1:100])).sum() / (steps**2).sum()
    mu = 2 * tau
    surprises: list[float] = []
    for _ in range(600):
        token = sampler.sample(torch.from_numpy(x)[None].clone(), [Draw(0)])[0].token_ids[0]
        if version == 1:
            size = ((zipf - 1) * 2**mu / (1 - vocab ** (1 - zipf))) ** (1 / zipf)
            limit = ranked[min(max(int(size), 1), vocab) - 1]
        else:
            limit = min(2.0**-mu, ranked[0])
        kept = p[p >= limit]
        assert p[token] >= limit * (1 - 2e-2)
        surprises.append(-math.log2(p[token] / kept.sum()))
        mu -= eta * (surprises[-1] - tau)
    assert np.mean(surprises[100:]) == pytest.approx(tau, abs=0.25)
