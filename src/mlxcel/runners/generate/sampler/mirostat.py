"""Mirostat 1 and 2 (Basu et al. 2020, arXiv:2007.14966), with llama.cpp's constants. They replace the truncating chain.

Each row steers the surprise of its tokens towards ``tau`` bits by a running limit ``mu``, which starts at ``2 tau``.
Logits here already carry the temperature.
"""

from __future__ import annotations

import torch

_ESTIMATE_TOKENS = 100


def kept_tokens(ranked: torch.Tensor, mu: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Mirostat 1: how many of the best tokens to keep, int64 [rows, 1], in 1..vocab.

    Args:
        ranked: best tokens of each row, at least min(100, vocab) of them.
        mu: float32 [rows, 1], bits.
    """
    head = ranked[:, :_ESTIMATE_TOKENS]
    places = torch.arange(1, head.shape[1], device=head.device, dtype=head.dtype)
    log_ratio = ((places + 1) / places).log()
    counted = head[:, 1:] > -torch.inf
    gaps = (head[:, :-1] - head[:, 1:]).masked_fill(~counted, 0.0)
    weight = (log_ratio.square() * counted).sum(-1, keepdim=True)
    exponent = (log_ratio * gaps).sum(-1, keepdim=True) / weight  # s-hat of the Zipf fit
    excess = exponent - 1.0
    # As the exponent tends to 1, excess / (1 - vocab ** -excess) tends to 1 / log(vocab).
    excess = torch.where(excess.abs() < 1e-4, torch.full_like(excess, 1e-4), excess)
    size = (excess * mu.exp2() / (1.0 - torch.pow(float(vocab_size), -excess))).pow(1.0 / exponent)
    return torch.nan_to_num(size, nan=1.0, posinf=vocab_size).clamp_(1, vocab_size).to(torch.int64)


def keep_within(probabilities: torch.Tensor, mu: torch.Tensor) -> None:
    """Mirostat 2: set to 0, in place, what surprises by more than ``mu`` bits; the best token stays."""
    best = probabilities.amax(-1, keepdim=True)
    probabilities.masked_fill_(probabilities < torch.minimum(torch.exp2(-mu), best), 0.0)


def next_limit(mu: torch.Tensor, tau: torch.Tensor, eta: torch.Tensor, probability: torch.Tensor) -> torch.Tensor:
    """The limit after a token of this (renormalised) probability was drawn. All tensors [rows, 1]."""
    return mu - eta * (-probability.log2() - tau)
