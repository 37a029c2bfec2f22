"""How a Hugging Face tensor is made from GGUF tensors: which rows of which tensors, and what to undo afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

RowOrder = Callable[[int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one GGUF tensor.

    Attributes:
        source: GGUF tensor name.
        index: index into the outermost dimension (one expert of a stack); None takes the whole tensor.
        order: for a row count, the order in which the rows are taken; None keeps them as stored.
    """

    source: str
    index: int | None = None
    order: RowOrder | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """``parts`` stacked along the rows, then ``adjust`` (which also must work on meta tensors, for the shape)."""

    parts: tuple[Part, ...]
    adjust: Callable[[torch.Tensor], torch.Tensor] | None = None


def unpermuted(head_count: int) -> RowOrder:
    """Undo llama.cpp's row order of query and key projections.

    It interleaves the two halves of each head for its RoPE kernel: stored row ``2 i + h`` is row ``h * half + i``.
    """

    def order(row_count: int) -> torch.Tensor:
        return torch.arange(row_count).view(head_count, -1, 2).transpose(1, 2).reshape(-1)

    return order
