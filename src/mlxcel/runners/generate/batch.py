"""The ragged batch: tokens of all rows of a step in one flat sequence, and the contract of a decoder that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One forward pass over rows of different lengths. All tensors are int32 on the CPU.

    Row ``r`` feeds the tokens ``row_starts[r] : row_starts[r + 1]``. Its keys and values live in the KV blocks
    ``block_tables[r]``; position ``p`` is in block ``block_tables[r][p // block_tokens]`` at offset ``p % block_tokens``.
    The decoder first appends the fed tokens' keys and values; each token then attends to positions ``0 .. its own`` of its
    row.

    Attributes:
        token_ids: [tokens].
        positions: [tokens]; absolute position in the row.
        row_starts: [rows + 1]; prefix sums, first 0, last ``tokens``.
        context_lens: [rows]; positions filled after this step.
        block_tables: [rows, max_blocks]; unused entries are 0.
        logit_indices: [outputs]; flat token indices whose logits are wanted, ascending.
        row_adapters: per row, the active LoRA scales ``(adapter id, scale)``; empty when none is active anywhere.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    row_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    logit_indices: torch.Tensor
    row_adapters: tuple[tuple[tuple[int, float], ...], ...] = ()


class Decoder(Protocol):
    """A causal model with its own paged KV pool. Called by the owner thread only.

    Attributes:
        vocab_size: columns of the logits.
        block_tokens: tokens per KV block.
        block_count: blocks in the pool.
        bytes_per_token: KV bytes of one token over all layers.
    """

    vocab_size: int
    block_tokens: int
    block_count: int
    bytes_per_token: int

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """Run one step.

        Returns:
            Logits, float32 [outputs, vocab_size], valid until the next call.
        """
