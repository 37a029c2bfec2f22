"""Ways to make one tensor of a Hugging Face checkpoint from tensors that another format keeps differently.

Each works on meta tensors too, which give the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Combine = Callable[[Sequence[torch.Tensor]], torch.Tensor]


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


def latent_kv(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """DeepSeek's ``kv_b_proj`` from its halves: keys [heads, latent, nope] and values [heads, value, latent]."""
    keys, values = parts
    return torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)


def first(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Another name for the same tensor."""
    return parts[0]
