"""Ragged attention over scattered blocks against a plain reference, row by row and token by token."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.decoder.attention import PagedKeysValues, RaggedLayout, Scoring, WindowRule

BLOCK_TOKENS, KV_HEADS, GROUP, HEAD_DIM, VALUE_DIM = 4, 2, 3, 8, 6
HEADS = KV_HEADS * GROUP
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Rows as (tokens already there, tokens fed now)."""

    rows: tuple[tuple[int, int], ...]
    seed: int

    def batch(self) -> RaggedBatch:
        contexts = [past + fed for past, fed in self.rows]
        widths = [-(-context // BLOCK_TOKENS) for context in contexts]
        order = torch.randperm(sum(widths), generator=torch.Generator().manual_seed(self.seed)).int()
        tables = torch.zeros(len(self.rows), max(widths), dtype=torch.int32)
        for row, (part, width) in enumerate(zip(torch.split(order, widths), widths, strict=True)):
            tables[row, :width] = part
        positions = [position for past, fed in self.rows for position in range(past, past + fed)]
        starts = [0, *torch.tensor([fed for _, fed in self.rows]).cumsum(0).tolist()]
        return RaggedBatch(
            token_ids=torch.zeros(len(positions), dtype=torch.int32),
            positions=torch.tensor(positions, dtype=torch.int32),
            row_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=tables,
            logit_indices=torch.arange(len(positions), dtype=torch.int32),
        )


def reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, scoring: Scoring
) -> torch.Tensor:
    """One query [heads, dim] at ``position`` over keys and values [positions, kv heads, dim]."""
    outputs = []
    for head in range(HEADS):
        scores = keys[: position + 1, head // GROUP].double() @ query[head].double() * scoring.scale
        if scoring.softcap:
            scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
        if isinstance(scoring.rule, WindowRule):
            scores[: max(0, position + 1 - scoring.rule.tokens)] = -torch.inf
        logits = scores if scoring.sinks is None else torch.cat((scores, scoring.sinks[head : head + 1].double()))
        weights = logits.softmax(0)[: position + 1]
        outputs.append(weights @ values[: position + 1, head // GROUP].double())
    return torch.cat(outputs)


def run(case: Case, scoring: Scoring, cache: PagedKeysValues) -> None:
    """Fill the past, append and attend, and compare every token."""
    generator = torch.Generator().manual_seed(case.seed)
    batch = case.batch()
    layout = RaggedLayout(batch, BLOCK_TOKENS, torch.float32, CPU)
    queries = torch.randn(len(batch.positions), HEADS, HEAD_DIM, generator=generator)
    rows = [
        (
            torch.randn(past + fed, KV_HEADS, HEAD_DIM, generator=generator),
            torch.randn(past + fed, KV_HEADS, VALUE_DIM, generator=generator),
        )
        for past, fed in case.rows
    ]
    for row, (keys, values) in enumerate(rows):
        past = case.rows[row][0]
        positions = torch.arange(past)
        slots = batch.block_tables[row, positions // BLOCK_TOKENS].long() * BLOCK_TOKENS + positions % BLOCK_TOKENS
        cache.append(slots, keys[:past], values[:past])
    fresh = [(keys[past:], values[past:]) for (keys, values), (past, _) in zip(rows, case.rows, strict=True)]
    cache.append(layout.slots, torch.cat([keys for keys, _ in fresh]), torch.cat([values for _, values in fresh]))
    out = layout.attend(queries, cache, scoring)
    token = 0
    for (past, fed), (keys, values) in zip(case.rows, rows, strict=True):
        for position in range(past, past + fed):
            expected = reference(queries[token], keys, values, position, scoring)
            torch.testing.assert_close(out[token].double(), expected, rtol=1e-4, atol=1e-5)
            token += 1


def new_cache(block_count: int = 200) -> PagedKeysValues:
    return PagedKeysValues((block_count, BLOCK_TOKENS), KV_HEADS, (HEAD_DIM, VALUE_DIM), torch.float32, CPU)


ROW = st.one_of(st.tuples(st.integers(0, 40), st.just(1)), st.tuples(st.integers(0, 20), st.integers(1, 12)))
CASES = st.builds(Case, rows=st.lists(ROW, min_size=1, max_size=6).map(tuple), seed=st.integers(0, 1000))
SCORINGS = st.builds(
    Scoring,
    scale=st.sampled_from([0.2, 1.0]),
    rule=st.sampled_from([None, WindowRule(1), WindowRule(5), WindowRule(100)]),
    softcap=st.sampled_from([None, 2.0]),
    sinks=st.sampled_from([None, torch.linspace(-1, 2, HEADS)]),
)


@settings(max_examples=60, deadline=None)
@given(CASES, SCORINGS)
def test_every_token_sees_exactly_its_row(case: Case, scoring: Scoring) -> None:
    run(case, scoring, new_cache())


@pytest.mark.parametrize("rows", [((7, 1), (9, 1), (6, 1)), ((3, 2), (7, 1))], ids=["bucket", "spans"])
def test_memory_of_other_rows_never_reaches_a_row(rows: tuple[tuple[int, int], ...]) -> None:
    """A row that computed NaN or infinity leaves its blocks behind; padding must not drag that in."""
    cache = new_cache(block_count=16)
    everywhere = torch.arange(16 * BLOCK_TOKENS)
    broken = torch.full((len(everywhere), KV_HEADS, HEAD_DIM), torch.nan)
    cache.append(everywhere, broken, torch.full((len(everywhere), KV_HEADS, VALUE_DIM), torch.inf))
    run(Case(rows, seed=0), Scoring(0.3), cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_new_pool_is_finite(dtype: torch.dtype) -> None:
    cache = PagedKeysValues((3, BLOCK_TOKENS), KV_HEADS, (HEAD_DIM, VALUE_DIM), dtype, CPU)
    assert (cache.keys.shape, cache.values.shape) == ((3, 4, 2, 8), (3, 4, 2, 6))
    assert cache.keys.dtype == dtype
    assert not cache.keys.any()
    assert not cache.values.any()
