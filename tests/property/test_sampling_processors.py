"""Each processor against a plain, one-row, float64 definition of it on random logits; rows have different settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.runners.generate.sampler import draw, mirostat, rowwise, truncate

Array = npt.NDArray[np.float64]
Kept = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]

SLACK = 1e-4


@st.composite
def batches(draw_value: st.DrawFn) -> tuple[torch.Tensor, np.random.Generator]:
    """Logits [rows, vocab] of several shapes: flat, peaked, tied, with banned tokens, wider than the windows."""
    random = np.random.default_rng(draw_value(st.integers(0, 2**32 - 1)))
    rows = draw_value(st.integers(1, 5))
    vocab = draw_value(st.sampled_from([1, 2, 7, 60, 300, 2500]))
    scale = draw_value(st.sampled_from([0.01, 1.0, 4.0]))
    logits = random.normal(size=(rows, vocab)) * scale + draw_value(st.sampled_from([-30.0, 0.0, 12.0]))
    if draw_value(st.booleans()):
        logits = np.round(logits)
    if draw_value(st.booleans()):
        banned = random.random((rows, vocab)) < 0.4
        banned[np.arange(rows), random.integers(0, vocab, rows)] = False
        logits[banned] = -np.inf
    return torch.from_numpy(logits.astype(np.float32)), random


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    total: Array = e / e.sum()
    return total


def column(values: npt.NDArray[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values)).to(dtype)[:, None]


def compare(before: torch.Tensor, after: torch.Tensor, reference: Callable[[int, Array], Kept]) -> None:
    """``reference`` gives (kept, certain) for a row; uncertain tokens lie on the boundary and may go either way."""
    for row, logits in enumerate(before.double().numpy()):
        with np.errstate(invalid="ignore"):
            kept, certain = reference(row, logits)
        result = after[row].numpy()
        alive = result > -np.inf
        np.testing.assert_array_equal(alive[certain], (kept & (logits > -np.inf))[certain])
        np.testing.assert_array_equal(result[alive], before[row].numpy()[alive])
        assert alive.any()


@given(batches())
@settings(max_examples=60, deadline=None)
def test_top_n_sigma(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    n, keep = random.uniform(0, 4, len(logits)), random.integers(1, 6, len(logits))

    def reference(row: int, x: Array) -> Kept:
        finite = x[x > -np.inf]
        limit = finite.max() - n[row] * finite.std()
        limit = min(limit, np.sort(x)[-min(keep[row], len(x))])
        return x >= limit, np.abs(x - limit) > SLACK * max(1.0, float(np.abs(finite).max()))

    after = logits.clone()
    truncate.top_n_sigma(after, column(n), column(keep, torch.int64))
    compare(logits, after, reference)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_p_less(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    temperature = random.uniform(0.2, 2.0, len(logits))

    def reference(row: int, x: Array) -> Kept:
        p = softmax(x / temperature[row])
        bound = (p**2).sum()
        return (p >= bound) | (x == x.max()), np.abs(np.log(np.maximum(p, 1e-300) / bound)) > SLACK

    after = logits.clone()
    truncate.p_less(after, column(temperature), None)
    compare(logits, after, reference)


def test_p_less_keeps_an_even_distribution_whole() -> None:
    logits = torch.full((3, 1000), 5.0)
    truncate.p_less(logits, torch.tensor([[0.3], [1.0], [7.0]]), None)
    assert bool((logits > -torch.inf).all())


@given(batches())
@settings(max_examples=60, deadline=None)
def test_typical(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    mass, keep = random.uniform(0.05, 0.999, len(logits)), random.integers(1, 6, len(logits))

    def reference(row: int, x: Array) -> Kept:
        p = softmax(x)
        alive = x > -np.inf
        surprise = np.where(alive, -np.log(np.maximum(p, 1e-300)), np.inf)
        entropy = (p[alive] * surprise[alive]).sum()
        distance = np.abs(surprise - entropy)
        order = np.argsort(distance, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        last = np.flatnonzero((before <= mass[row]) | (np.arange(len(x)) < keep[row]))[-1]
        limit = distance[order][last]
        # A sum that comes near the mass decides over one more neighbour.
        close = np.abs(before - mass[row]) < SLACK
        doubtful = np.isin(distance, distance[order][close]) | (np.abs(distance - limit) < SLACK * 40)
        return distance <= limit, ~doubtful

    after = logits.clone()
    truncate.typical(after, column(mass), column(keep, torch.int64))
    compare(logits, after, reference)


@given(batches())
@settings(max_examples=80, deadline=None)
def test_top_k_and_top_p(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    rows, vocab = logits.shape
    ranked, _ = rowwise.best_tokens(logits, vocab)
    keep = random.integers(1, 6, rows)
    top_k = np.maximum(np.minimum(random.choice([1, 3, 40, vocab], rows), vocab), np.minimum(keep, vocab))
    top_p = np.where(random.random(rows) < 0.3, np.inf, random.uniform(0.0, 0.999, rows))

    def reference(row: int, x: Array) -> Kept:
        rank = np.arange(vocab)
        p = softmax(np.where(rank < top_k[row], x, -np.inf))
        before = np.cumsum(p) - p
        kept = (rank < top_k[row]) & ((before < top_p[row]) | (rank < keep[row]))
        return kept, np.abs(before - top_p[row]) > SLACK

    after = ranked.clone()
    truncate.top_k_and_p(after, column(top_k, torch.int64), column(top_p), column(keep, torch.int64), None)
    compare(ranked, after, reference)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_min_p(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    ranked, _ = rowwise.best_tokens(logits, logits.shape[1])
    ratio, keep = random.uniform(0.0, 1.0, len(logits)), random.integers(1, 6, len(logits))

    def reference(row: int, x: Array) -> Kept:
        p = softmax(x)
        kept = (p >= ratio[row] * p.max()) | (np.arange(len(x)) < keep[row])
        return kept, np.abs(p / p.max() - ratio[row]) > SLACK

    after = ranked.clone()
    truncate.min_p(after, column(np.log(ratio)), column(keep, torch.int64))
    compare(ranked, after, reference)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_xtc(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    rows, vocab = logits.shape
    threshold, keep = random.uniform(0.001, 0.5, rows), random.integers(1, 6, rows)
    struck = random.random(rows) < 0.8
    protected = random.random((rows, vocab)) < 0.1

    def reference(row: int, x: Array) -> Kept:
        p = softmax(x)
        order = np.argsort(-x, kind="stable")
        over = [token for token in order if p[token] >= threshold[row]]
        removed = {t for t in over if x[t] > x[over[-1]]} if len(over) >= 2 else set()
        removed -= set(np.flatnonzero(protected[row]))
        if not struck[row] or (x > -np.inf).sum() - len(removed) < keep[row]:
            removed = set()
        kept = np.array([token not in removed for token in range(vocab)])
        certain = np.full(vocab, bool((np.abs(p - threshold[row]) > 1e-6).all()))
        return kept, certain

    after = logits.clone()
    truncate.xtc(
        after,
        column(threshold),
        torch.from_numpy(struck)[:, None],
        torch.from_numpy(protected),
        column(keep, torch.int64),
    )
    compare(logits, after, reference)


@given(batches())
@settings(max_examples=40, deadline=None)
def test_dynamic_temperature(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    rows = len(logits)
    temperature, half = random.uniform(0.1, 2.0, rows), random.choice([0.0, 0.05, 1.5], rows)
    exponent = random.uniform(0.5, 2.0, rows)
    result = draw.dynamic_temperature(logits, column(temperature), column(half), column(exponent))
    for row, x in enumerate(logits.double().numpy()):
        p = softmax(x)
        p = p[x > -np.inf]
        expected = temperature[row]
        if half[row] > 0 and len(p) > 1:
            share = max(0.0, -(p * np.log(np.maximum(p, 1e-300))).sum() / np.log(len(p)))
            low, high = max(0.0, temperature[row] - half[row]), temperature[row] + half[row]
            expected = low + (high - low) * share ** exponent[row]
        assert float(result[row]) == pytest.approx(expected, abs=2e-3)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_draws_invert_the_cumulative_distribution(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    probabilities = torch.softmax(logits, -1)
    uniform = random.choice([0.0, 1 - 2.0**-53, random.random()], len(logits))
    columns, found = draw.invert(probabilities, column(uniform, torch.float64))
    assert bool(found.all())
    for row, p in enumerate(probabilities.double().numpy()):
        chosen = int(columns[row])
        assert p[chosen] > 0.0
        cumulative = np.cumsum(p)
        assert cumulative[chosen] - p[chosen] <= uniform[row] * cumulative[-1] + 1e-6
        assert cumulative[chosen] >= uniform[row] * cumulative[-1] - 1e-6


def test_a_row_without_probability_has_no_draw() -> None:
    probabilities = torch.tensor([[0.0, 0.0], [torch.nan, 1.0], [0.0, 1.0]])
    columns, found = draw.invert(probabilities, torch.full((3, 1), 0.999, dtype=torch.float64))
    assert found.tolist() == [False, False, True]
    assert int(columns[2]) == 1


@given(batches())
@settings(max_examples=60, deadline=None)
def test_mirostat_1_keeps_as_many_as_its_zipf_fit_says(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    vocab = logits.shape[1]
    ranked, _ = rowwise.best_tokens(logits, vocab)
    mu = random.uniform(0.5, 12.0, len(logits))
    kept = mirostat.kept_tokens(ranked, column(mu), vocab)
    assert bool(((kept >= 1) & (kept <= vocab)).all())
    for row, x in enumerate(ranked.double().numpy()):
        x = x[x > -np.inf]
        count = min(len(x), 100)
        if count < 3:
            continue
        t = np.log(np.arange(2, count + 1) / np.arange(1, count))
        s = (t * (x[: count - 1] - x[1:count])).sum() / (t**2).sum()
        if s < 0.05 or abs(s - 1) < 0.01:
            continue
        size = ((s - 1) * 2.0 ** mu[row] / (1 - float(vocab) ** (1 - s))) ** (1 / s)
        expected = min(max(int(size), 1), vocab)
        assert int(kept[row]) == pytest.approx(expected, rel=0.02, abs=1)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_mirostat_2_cuts_what_surprises_too_much(batch: tuple[torch.Tensor, np.random.Generator]) -> None:
    logits, random = batch
    mu = random.uniform(0.0, 12.0, len(logits))
    probabilities = torch.softmax(logits, -1)
    after = probabilities.clone()
    mirostat.keep_within(after, column(mu))
    for row, p in enumerate(probabilities.double().numpy()):
        surprise = -np.log2(np.maximum(p, 1e-300))
        expected = (surprise <= mu[row]) | (p == p.max())
        certain = np.abs(surprise - mu[row]) > SLACK
        np.testing.assert_array_equal((after[row].numpy() > 0)[certain], (expected & (p > 0))[certain])


@given(batches(), st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_best_tokens_are_the_greatest_in_order(batch: tuple[torch.Tensor, np.random.Generator], count: int) -> None:
    logits, _ = batch
    count = min(count, logits.shape[1])
    values, ids = rowwise.best_tokens(logits, count)
    torch.testing.assert_close(values, torch.sort(logits, descending=True).values[:, :count])
    torch.testing.assert_close(logits.gather(1, ids), values)
    assert all(len(set(row)) == count for row in ids.tolist())
    logits[0, 0] = torch.nan
    assert bool(rowwise.best_tokens(logits, count)[0][0, 0].isnan())


@given(st.integers(0, 2**32 - 1), st.sampled_from([700, 40_000, 150_001]))
@settings(max_examples=8, deadline=None)
def test_a_row_is_reduced_alike_alone_and_among_others(seed: int, vocab: int) -> None:
    x = torch.randn(5, vocab, generator=torch.Generator().manual_seed(seed)) * 5
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # a single thread adds in one order anyway
    try:
        for reduce in (rowwise.total, rowwise.sum_of_squares, rowwise.log_total):
            together = reduce(x)
            for row in range(5):
                assert torch.equal(reduce(x[row : row + 1]), together[row : row + 1])
                assert torch.equal(reduce(x[row:]), together[row:])
    finally:
        torch.set_num_threads(threads)
