"""How a Hugging Face tensor is made from GGUF tensors: which rows of which tensors, and what to undo afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Order = Callable[[int], torch.Tensor]
"""For a count of rows (or columns), the stored one that each comes from: int64 [count]."""

Combine = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Makes one dense tensor from several. Must also work on meta tensors, which give the shape."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one GGUF tensor.

    Attributes:
        source: GGUF tensor name.
        index: index into the outermost dimension (one expert of a stack); None takes the whole tensor.
        rows: start and stop row, after ``index``; None takes all.
    """

    source: str
    index: int | None = None
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """One tensor of the Hugging Face checkpoint.

    Attributes:
        parts: GGUF tensors, stacked along the rows unless ``combine`` does otherwise.
        order: order in which the stacked rows are taken; None keeps them. Rows move as stored bytes, so codes survive it.
        combine: makes the tensor from the dense parts; the result is then no longer quantised.
        columns: order in which the columns are taken, at the end; the same holds.
    """

    parts: tuple[Part, ...]
    order: Order | None = None
    combine: Combine | None = None
    columns: Order | None = None


def unpermuted(head_dim: int) -> Order:
    """Undo llama.cpp's row order of query and key projections.

    It interleaves the two halves of each head for its RoPE kernel: stored row ``2 i + h`` is row ``h * half + i``.
    """

    def order(row_count: int) -> torch.Tensor:
        return torch.arange(row_count).view(-1, head_dim // 2, 2).transpose(1, 2).reshape(-1)

    return order


def grouped_qkv(head_count: int, group_count: int) -> Order:
    """Undo the split of a fused projection into all queries, all keys, all values.

    The models that have it (BLOOM, GPT-NeoX, Falcon) store for each key/value head its queries, its key, then its value.
    """

    def order(row_count: int) -> torch.Tensor:
        head_dim = row_count // (head_count + 2 * group_count)
        heads = torch.arange(row_count).view(-1, head_dim)
        queries, keys, values = torch.split(heads, [head_count, group_count, group_count])
        queries = queries.view(group_count, -1, head_dim)
        return torch.cat((queries, keys.unsqueeze(1), values.unsqueeze(1)), dim=1).reshape(-1)

    return order


def untiled(group_count: int, head_dim: int, first_row: int = 0) -> Order:
    """Undo llama.cpp's order of value heads in gated delta nets: head ``r`` of every group, for each ``r``.

    The models keep the heads of a group together. Rows before ``first_row`` stay.
    """

    def order(row_count: int) -> torch.Tensor:
        rows = torch.arange(first_row, row_count).view(-1, group_count, head_dim)
        return torch.cat((torch.arange(first_row), rows.transpose(0, 1).reshape(-1)))

    return order


def grouped_qkvz(group_count: int, key_rows: int, value_rows: int) -> Order:
    """Undo the split of Qwen3-Next's projection into all queries, keys, values and gates; it is stored group by group.

    Args:
        key_rows: rows of all keys (as many as of the queries).
        value_rows: rows of all values (as many as of the gates).
    """

    def order(row_count: int) -> torch.Tensor:
        kinds = torch.split(torch.arange(row_count), [key_rows, key_rows, value_rows, value_rows])
        return torch.cat([rows.view(group_count, -1) for rows in kinds], dim=1).reshape(-1)

    return order


def unshifted(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Norm weights that the model applies as ``1 + weight`` are stored with the 1 added."""
    return parts[0] - 1.0


def transposed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """GPT-2 keeps its projections as [in, out]."""
    return parts[0].transpose(-1, -2)


def flattened(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0].flatten()


def depthwise(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Convolution kernels [channels, taps] become [channels, 1, taps]."""
    return parts[0].unsqueeze(1)


def log_decay(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """State-space decay is stored as ``-exp(A_log)``."""
    return torch.log(-parts[0])


def flat_log_decay(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.log(-parts[0].flatten())


def stacked_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Experts' gate and up rows, [experts, rows, in] each, one above the other within each expert."""
    return torch.cat(tuple(parts), dim=-2)


def stacked_columns(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """As ``stacked_rows``, then [experts, in, rows]."""
    return torch.cat(tuple(parts), dim=-2).transpose(-1, -2)


def interleaved_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Row ``2 i`` is gate row ``i``, row ``2 i + 1`` is up row ``i``; the last dimension is the row (biases)."""
    return torch.stack(tuple(parts), dim=-1).flatten(-2)


def interleaved_columns(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """As ``interleaved_rows`` for matrices [experts, rows, in], then [experts, in, rows]."""
    return torch.stack(tuple(parts), dim=-2).flatten(-3, -2).transpose(-1, -2)


def expert_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """[experts, rows, in] as one matrix [experts * rows, in]."""
    return parts[0].flatten(0, 1)


def transposed_expert_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0].transpose(-1, -2).flatten(0, 1)


def latent_kv(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """DeepSeek's ``kv_b_proj`` from its halves: keys [heads, latent, nope] and values [heads, value, latent]."""
    keys, values = parts
    return torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)
