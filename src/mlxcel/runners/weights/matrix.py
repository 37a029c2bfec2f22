"""The one quantised form the linear kernels know: integer codes with a scale and a minimum per group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A weight matrix as ``w[o, i] = scales[o, g] * codes[o, i] + minimums[o, g]`` with ``g = i // group``.

    The identity holds bit for bit in float32, for weights below 2 ** 120: every format mapped here keeps ``scale * code``
    exact, so that the single rounding of the addition is the same one the format's own reference dequantiser makes.

    Attributes:
        bits: code width, 4 (codes 0..15) or 8 (codes 0..255); narrower formats use the next width up.
        group: inputs that share a scale: 16, 32, 64 or 128.
        codes: uint8 [out, in].
        scales: float32 [out, in / group].
        minimums: float32 [out, in / group].
    """

    bits: int
    group: int
    codes: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """``(out, in)``."""
        return self.codes.shape[0], self.codes.shape[1]

    def dense(self) -> torch.Tensor:
        """The matrix as float32 [out, in]."""
        out_features, in_features = self.shape
        grouped = self.codes.view(out_features, -1, self.group).to(torch.float32)
        grouped.mul_(self.scales.unsqueeze(-1)).add_(self.minimums.unsqueeze(-1))
        return grouped.view(out_features, in_features)
