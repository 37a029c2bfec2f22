"""How a Hugging Face tensor is made from GGUF tensors: which rows of which tensors, and what to undo afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mlxcel.runners.weights.combine import Combine

Order = Callable[[int], torch.Tensor]
"""For a count of rows (or columns), the stored one that each comes from: int64 [count]."""


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
