"""Attention of a ragged batch over a paged KV pool, in plain torch.

The index tensors of a step are computed once (:class:`RaggedLayout`) and shared by all layers. Rows that feed one token are
attended together, padded to the longest of their bucket; rows that feed several are attended one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from mlxcel.runners.generate.batch import RaggedBatch

Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Which keys a query sees besides causality: (query positions, key positions), int64 and broadcastable, -> bool."""


@dataclass(frozen=True, slots=True)
class WindowRule:
    """A token sees the last ``tokens`` positions, its own included."""

    tokens: int

    def __call__(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        return key_positions > query_positions - self.tokens


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """How scores become weights.

    Attributes:
        scale: factor on ``q . k``.
        rule: limits on what is seen; None is plain causal. Masks are cached under the rule, so equal rules share them.
        softcap: scores become ``softcap * tanh(score / softcap)`` (Gemma 2).
        sinks: [heads]; a logit that takes part in the softmax of every query but has no value (gpt-oss).
    """

    scale: float
    rule: Rule | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class PagedKeysValues:
    """Keys and values of one layer, in blocks.

    Every number in a block is finite, whatever a broken row computes: padded attention multiplies unseen keys and values by
    zero, which only a finite number survives, and blocks pass from row to row. CPU memory is touched only where tokens are
    written.
    """

    __slots__ = ("keys", "values")

    def __init__(
        self, blocks: tuple[int, int], heads: int, head_dims: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """``blocks``: (blocks, tokens a block); ``head_dims``: of keys and of values."""
        self.keys = _lazy_zeros((*blocks, heads, head_dims[0]), dtype, device)
        self.values = _lazy_zeros((*blocks, heads, head_dims[1]), dtype, device)

    def append(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write [tokens, heads, head_dim] to slots (block * block_tokens + offset, int64 [tokens])."""
        self.keys.flatten(0, 1).index_copy_(0, slots, keys.nan_to_num())
        self.values.flatten(0, 1).index_copy_(0, slots, values.nan_to_num())


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose CPU pages the system provides on first write (``torch.zeros`` writes them all)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of the batch. ``masks`` caches additive masks by rule.

    A bucket has several rows of one token each: ``tokens`` are their flat indices (None: all tokens, in order),
    ``query_positions`` is [rows, 1], ``blocks`` int64 [rows * width]. A span is one row: tokens ``start:stop``,
    ``query_positions`` [tokens, 1], ``blocks`` [width].
    """

    query_positions: torch.Tensor
    key_count: int
    blocks: torch.Tensor
    start: int = 0
    stop: int = 0
    tokens: torch.Tensor | None = None
    masks: dict[Rule | None, torch.Tensor | None] = field(default_factory=dict)


class RaggedLayout:
    """Where the tokens of a step go and what they see.

    Args:
        batch: the step.
        block_tokens: tokens per KV block.
        dtype, device: of the masks.
    """

    def __init__(self, batch: RaggedBatch, block_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        lengths = (batch.row_starts[1:] - batch.row_starts[:-1]).long()
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        positions = batch.positions.long()
        blocks = batch.block_tables[rows, positions // block_tokens].long()
        self.slots = (blocks * block_tokens + positions % block_tokens).to(device)
        self._block_tokens = block_tokens
        self._dtype = dtype
        self._device = device
        self._token_count = len(rows)
        self._buckets: list[_Part] = []
        self._spans: list[_Part] = []
        self._place_rows(batch, lengths.tolist())

    def attend(self, queries: torch.Tensor, cache: PagedKeysValues, scoring: Scoring) -> torch.Tensor:
        """Attention output [tokens, heads * value_dim] of queries [tokens, heads, head_dim]; append keys first."""
        if len(self._buckets) == 1 and self._buckets[0].tokens is None:
            return self._attend_bucket(self._buckets[0], queries, cache, scoring)
        out = queries.new_empty(self._token_count, queries.shape[1] * cache.values.shape[-1])
        for bucket in self._buckets:
            out[bucket.tokens] = self._attend_bucket(bucket, queries[bucket.tokens], cache, scoring)
        for span in self._spans:
            out[span.start : span.stop] = self._attend_span(span, queries[span.start : span.stop], cache, scoring)
        return out

    def _place_rows(self, batch: RaggedBatch, lengths: Sequence[int]) -> None:
        """One-token rows whose block counts share a power of two form a bucket (at most twice the work of no padding)."""
        starts, contexts = batch.row_starts.tolist(), batch.context_lens.tolist()
        buckets: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            if length == 1:
                buckets.setdefault((contexts[row] // self._block_tokens).bit_length(), []).append(row)
            else:
                self._spans.append(self._span(batch, row, starts[row], length, contexts[row]))
        for members in buckets.values():
            if len(members) == 1:
                row = members[0]
                self._spans.append(self._span(batch, row, starts[row], 1, contexts[row]))
            else:
                self._buckets.append(self._bucket(batch, members, [starts[row] for row in members]))

    def _bucket(self, batch: RaggedBatch, members: Sequence[int], tokens: Sequence[int]) -> _Part:
        rows = torch.tensor(members)
        contexts = batch.context_lens[rows].long()[:, None]
        width = -(-int(contexts.max()) // self._block_tokens)
        whole = len(members) == self._token_count
        return _Part(
            query_positions=contexts - 1,
            key_count=width * self._block_tokens,
            blocks=batch.block_tables[rows, :width].long().flatten().to(self._device),
            tokens=None if whole else torch.tensor(tokens, device=self._device),
        )

    def _span(self, batch: RaggedBatch, row: int, start: int, length: int, context: int) -> _Part:
        width = -(-context // self._block_tokens)
        return _Part(
            query_positions=torch.arange(context - length, context)[:, None],
            key_count=context,
            blocks=batch.block_tables[row, :width].long().to(self._device),
            start=start,
            stop=start + length,
        )

    def _mask(self, part: _Part, rule: Rule | None) -> torch.Tensor:
        """Additive mask [queries, keys] of a part."""
        query_positions = part.query_positions.to(self._device)
        key_positions = torch.arange(part.key_count, device=self._device)[None, :]
        visible = key_positions <= query_positions
        if rule is not None:
            visible = visible & rule(query_positions, key_positions)
        return torch.zeros(visible.shape, dtype=self._dtype, device=self._device).masked_fill_(~visible, -torch.inf)

    def _attend_bucket(self, bucket: _Part, queries: torch.Tensor, cache: PagedKeysValues, scoring: Scoring) -> torch.Tensor:
        heads, head_dim = cache.keys.shape[2:]
        rows = len(queries)
        mask = bucket.masks.get(scoring.rule)
        if mask is None:
            mask = bucket.masks[scoring.rule] = self._mask(bucket, scoring.rule)[:, None, None, :]
        # The query heads of one key/value head stand in for query positions, so that keys need not be repeated.
        grouped = queries.reshape(rows, heads, -1, head_dim)
        keys = cache.keys.index_select(0, bucket.blocks).view(rows, -1, heads, head_dim).transpose(1, 2)
        values = cache.values.index_select(0, bucket.blocks).view(rows, -1, heads, cache.values.shape[-1]).transpose(1, 2)
        if scoring.softcap is None and scoring.sinks is None:
            out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scoring.scale)
        else:
            sinks = None if scoring.sinks is None else scoring.sinks.view(heads, -1, 1)
            out = _weigh(grouped, keys, values, mask, scoring, sinks)
        return out.reshape(rows, -1)

    def _attend_span(self, span: _Part, queries: torch.Tensor, cache: PagedKeysValues, scoring: Scoring) -> torch.Tensor:
        """Queries [tokens, heads, head_dim] of one row against its whole context."""
        length, heads = queries.shape[:2]
        if scoring.rule not in span.masks:
            unmasked = scoring.rule is None and length in (1, span.key_count)  # the latter by SDPA's own causal mask
            span.masks[scoring.rule] = None if unmasked else self._mask(span, scoring.rule)
        mask = span.masks[scoring.rule]
        keys = cache.keys.index_select(0, span.blocks).flatten(0, 1)[: span.key_count].transpose(0, 1)[None]
        values = cache.values.index_select(0, span.blocks).flatten(0, 1)[: span.key_count].transpose(0, 1)[None]
        queries = queries.transpose(0, 1)
        if scoring.softcap is None and scoring.sinks is None:
            causal = mask is None and length > 1
            out = F.scaled_dot_product_attention(
                queries[None], keys, values, attn_mask=mask, is_causal=causal, scale=scoring.scale, enable_gqa=True
            )[0]
        else:
            kv_heads = keys.shape[1]
            grouped = queries.reshape(kv_heads, -1, length, queries.shape[-1])
            sinks = None if scoring.sinks is None else scoring.sinks.view(kv_heads, -1, 1, 1)
            mask = self._mask(span, scoring.rule) if mask is None else mask
            out = _weigh(grouped, keys[0][:, None], values[0][:, None], mask, scoring, sinks).reshape(heads, length, -1)
        return out.transpose(0, 1).flatten(1)


def _weigh(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scoring: Scoring,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention with a soft cap and sinks; shapes broadcast as in ``queries @ keys.T``, sinks against the scores."""
    scores = (queries @ keys.transpose(-1, -2)) * scoring.scale
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    scores = scores.float() + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1).to(values.dtype)
    return (weights if sinks is None else weights[..., :-1]) @ values
