"""Attention of a ragged batch over a paged KV pool, in plain torch.

The index tensors of a step are computed once (:class:`RaggedLayout`) and shared by all layers. Rows that feed one token are
attended together, padded to the longest of their bucket; rows that feed several are attended one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from mlxcel.runners.generate.batch import RaggedBatch


class KvPool:
    """Keys and values of all layers, in blocks. Memory is touched only where tokens are written."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """``shape``: (layers, blocks, tokens a block, key/value heads, head size)."""
        layers, blocks, block_tokens, heads, head_dim = shape
        self.keys = [torch.empty(blocks, block_tokens, heads, head_dim, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty_like(keys) for keys in self.keys]

    def append(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write [tokens, heads, head_dim] to the given slots (block * block_tokens + offset, int64 [tokens])."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Rows of one token each.

    ``tokens``: int64 [rows], flat token indices, None when they are all tokens in order. ``blocks``: int64 [rows * width].
    ``masks``: window -> additive mask [rows, 1, 1, keys].
    """

    tokens: torch.Tensor | None
    row_count: int
    blocks: torch.Tensor
    masks: Mapping[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Span:
    """One row on its own: tokens ``start:stop`` over the first ``context`` positions. A missing mask needs none."""

    start: int
    stop: int
    context: int
    blocks: torch.Tensor
    masks: Mapping[int, torch.Tensor | None]


class RaggedLayout:
    """Where the tokens of a step go and what they see.

    Args:
        batch: the step.
        block_tokens: tokens per KV block.
        windows: the distinct attention windows of the layers (0 is unlimited).
        dtype, device: of the masks.
    """

    def __init__(
        self, batch: RaggedBatch, block_tokens: int, windows: frozenset[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        lengths = (batch.row_starts[1:] - batch.row_starts[:-1]).long()
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        positions = batch.positions.long()
        blocks = batch.block_tables[rows, positions // block_tokens].long()
        self.slots = (blocks * block_tokens + positions % block_tokens).to(device)
        self._block_tokens = block_tokens
        self._windows = windows
        self._dtype = dtype
        self._device = device
        self._token_count = len(rows)
        self._buckets: list[_Bucket] = []
        self._spans: list[_Span] = []
        self._place_rows(batch, lengths.tolist())

    def attend(self, queries: torch.Tensor, pool: KvPool, layer: int, *, scale: float, window: int) -> torch.Tensor:
        """Attention output [tokens, heads * head_dim] for queries [tokens, heads, head_dim]; call after ``pool.append``."""
        keys, values = pool.keys[layer], pool.values[layer]
        if len(self._buckets) == 1 and self._buckets[0].tokens is None:
            return self._attend_bucket(self._buckets[0], queries, keys, values, scale=scale, window=window)
        out = queries.new_empty(self._token_count, queries.shape[1] * values.shape[-1])
        for bucket in self._buckets:
            part = queries if bucket.tokens is None else queries[bucket.tokens]
            attended = self._attend_bucket(bucket, part, keys, values, scale=scale, window=window)
            out.index_copy_(0, bucket.tokens, attended) if bucket.tokens is not None else out.copy_(attended)
        for span in self._spans:
            out[span.start : span.stop] = self._attend_span(span, queries, keys, values, scale=scale, window=window)
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

    def _bucket(self, batch: RaggedBatch, members: Sequence[int], tokens: Sequence[int]) -> _Bucket:
        rows = torch.tensor(members)
        contexts = batch.context_lens[rows][:, None]
        width = -(-int(contexts.max()) // self._block_tokens)
        positions = torch.arange(width * self._block_tokens)[None, :]
        masks = {}
        for window in self._windows:
            visible = positions < contexts
            if window:
                visible &= positions >= contexts - window
            mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, -torch.inf)
            masks[window] = mask[:, None, None, :].to(self._device)
        whole = len(members) == self._token_count
        return _Bucket(
            tokens=None if whole else torch.tensor(tokens, device=self._device),
            row_count=len(members),
            blocks=batch.block_tables[rows, :width].long().flatten().to(self._device),
            masks=masks,
        )

    def _span(self, batch: RaggedBatch, row: int, start: int, length: int, context: int) -> _Span:
        width = -(-context // self._block_tokens)
        query_positions = torch.arange(context - length, context)[:, None]
        key_positions = torch.arange(context)[None, :]
        masks: dict[int, torch.Tensor | None] = {}
        for window in self._windows:
            limited = 0 < window < context
            if limited or 1 < length < context:
                visible = key_positions <= query_positions
                if limited:
                    visible &= key_positions > query_positions - window
                mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, -torch.inf)
                masks[window] = mask.to(self._device)
            else:
                masks[window] = None
        blocks = batch.block_tables[row, :width].long().to(self._device)
        return _Span(start, start + length, context, blocks, masks)

    def _attend_bucket(
        self, bucket: _Bucket, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float, window: int
    ) -> torch.Tensor:
        heads, head_dim = keys.shape[2:]
        rows = bucket.row_count
        # The query heads of one key/value head stand in for query positions, so that keys need not be repeated.
        grouped = queries.reshape(rows, heads, -1, head_dim)
        row_keys = keys.index_select(0, bucket.blocks).view(rows, -1, heads, head_dim).transpose(1, 2)
        row_values = values.index_select(0, bucket.blocks).view(rows, -1, heads, values.shape[-1]).transpose(1, 2)
        out = F.scaled_dot_product_attention(grouped, row_keys, row_values, attn_mask=bucket.masks[window], scale=scale)
        return out.reshape(rows, -1)

    def _attend_span(
        self, span: _Span, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float, window: int
    ) -> torch.Tensor:
        mask = span.masks[window]
        row_keys = keys.index_select(0, span.blocks).flatten(0, 1)[: span.context].transpose(0, 1)
        row_values = values.index_select(0, span.blocks).flatten(0, 1)[: span.context].transpose(0, 1)
        part = queries[span.start : span.stop].transpose(0, 1)
        causal = mask is None and span.stop - span.start > 1
        out = F.scaled_dot_product_attention(
            part[None], row_keys[None], row_values[None], attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        )
        return out[0].transpose(0, 1).flatten(1)
