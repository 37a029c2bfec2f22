"""The end of the chain: temperature, then one draw a row by inverting the cumulative distribution."""

from __future__ import annotations

import torch

from mlxcel.runners.generate.sampler import rowwise


def dynamic_temperature(
    logits: torch.Tensor, temperature: torch.Tensor, half_range: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    """Temperature within ``temperature`` +- ``half_range`` by the entropy of what is left, [rows, 1].

    The share of the greatest possible entropy, raised to ``exponent``, picks the place in the range (kalomaze 2023, as in
    llama.cpp). Rows with ``half_range`` 0 keep their temperature.
    """
    log_p = torch.log_softmax(logits, -1)
    entropy = -rowwise.total(torch.nan_to_num(log_p.exp() * log_p, nan=0.0))
    count = (logits > -torch.inf).sum(-1, keepdim=True)
    share = (entropy / count.clamp(min=2).log()).clamp_(0.0, 1.0)
    lowest = (temperature - half_range).clamp_(min=1e-6)
    dynamic = lowest + (temperature + half_range - lowest) * share.pow(exponent)
    return torch.where((half_range > 0.0) & (count > 1), dynamic, temperature)


def invert(probabilities: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The column that ``uniform`` falls on, and whether there is one; both [rows].

    A column with probability 0 is never chosen. A row that is all 0 or holds NaN has no column.

    Args:
        probabilities: [rows, tokens], not necessarily of sum 1.
        uniform: float64 [rows, 1] in [0, 1).
    """
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    # A product that rounds up to the total would fall behind the last token.
    target = torch.minimum((uniform * total).to(total.dtype), torch.nextafter(total, torch.zeros_like(total)))
    found = (total > 0.0).squeeze(1)
    column = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return column.clamp_(max=probabilities.shape[1] - 1), found
