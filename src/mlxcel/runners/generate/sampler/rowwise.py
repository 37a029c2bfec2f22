"""Operations on each row of a [rows, tokens] float32 tensor whose result does not depend on how many rows there are.

torch reduces one long row in parallel, in another order than it reduces one of many; a draw must not hear the difference.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

# Up to here torch's top-k is the faster one; beyond, numpy's vectorised partition is, by far.
_SMALL_COUNT = 64
# Temporaries of this many elements stay in the processor's cache and in the allocator's hands.
_BLOCK_ELEMENTS = 2**19


def blocks(x: torch.Tensor) -> list[slice]:
    """Consecutive blocks of rows, for work that makes temporaries as large as its input.

    Passes over a block that stays in the cache are several times faster than the same passes over a whole batch with a
    large vocabulary.
    """
    rows = max(1, _BLOCK_ELEMENTS // x.shape[1])
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def total(x: torch.Tensor) -> torch.Tensor:
    """Sum of each row, [rows, 1]."""
    return _twice_if_single(x).sum(-1, keepdim=True)[: len(x)]


def sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    """[rows, 1], without a tensor of the squares."""
    norm: torch.Tensor = torch.linalg.vector_norm(_twice_if_single(x), dim=-1, keepdim=True)
    return norm[: len(x)].square()


def log_total(logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exponentials, [rows, 1]; NaN for a row without finite logits."""
    result = logits.amax(-1, keepdim=True)
    for block in blocks(logits):
        result[block] += total((logits[block] - result[block]).exp_()).log_()
    return result


def best_tokens(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` greatest values of each row in descending order, NaN first, and their columns; both [rows, count]."""
    if count <= _SMALL_COUNT or x.device.type != "cpu":
        best = torch.topk(x, count)
        return best.values, best.indices
    ids = torch.cat([_best_columns(x[block].numpy(), count) for block in blocks(x)])
    return x.gather(1, ids), ids


def _best_columns(x: npt.NDArray[np.float32], count: int) -> torch.Tensor:
    if count == x.shape[1]:
        ascending = np.argsort(x, axis=1)
    else:
        some = np.argpartition(x, -count, axis=1)[:, -count:]
        ascending = np.take_along_axis(some, np.argsort(np.take_along_axis(x, some, axis=1), axis=1), axis=1)
    return torch.from_numpy(ascending[:, ::-1].copy())


def _twice_if_single(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, -1) if len(x) == 1 else x
