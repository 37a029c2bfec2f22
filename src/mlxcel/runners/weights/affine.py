"""Quantised tensors of MLX checkpoints: packed uint32 codes with a scale, and mostly a bias, per group of inputs.

Modes: "affine", ``w = scale * code + bias`` with 2 to 8 bits; "mxfp4" and "nvfp4", 4-bit floats that share a power of two
or an 8-bit float; "mxfp8", 8-bit floats with a shared power of two (https://ml-explore.github.io/mlx, ``mx.quantize``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.packing import E2M1_OFFSET, e2m1_codes, e8m0, unpack_bits
from mlxcel.runners.weights.tensor_files import TensorFiles

_WIDTHS = (2, 3, 4, 5, 6, 8)
_GROUPS = {"mxfp4": 32, "nvfp4": 16, "mxfp8": 32}


@dataclass(frozen=True, slots=True)
class MlxEntry:
    """``module.weight`` with ``module.scales`` and ``module.biases``; ``index`` picks one expert of a stack.

    MLX computes ``scale * code + bias`` in the type of the scales; here it is done in float32, which is closer to the
    weights that were quantised.
    """

    files: TensorFiles
    module: str
    mode: str
    bits: int
    group: int
    index: int | None = None

    def shape(self) -> tuple[int, ...]:
        packed = self.files.shape(f"{self.module}.weight")[self.index is not None :]
        return (*packed[:-1], packed[-1] * 32 // self.bits)

    def dense(self) -> torch.Tensor:
        if self.mode == "mxfp8":
            values = self._part("weight").contiguous().view(torch.float8_e4m3fn).to(torch.float32)
            scales = e8m0(self._part("scales"))
            return values.view(*scales.shape, self.group).mul_(scales.unsqueeze(-1)).flatten(-2)
        return self._matrix().dense().view(self.shape())

    def quantised(self) -> QuantisedMatrix | None:
        return None if self.mode == "mxfp8" or len(self.shape()) != 2 else self._matrix()

    def _matrix(self) -> QuantisedMatrix:
        words = self._part("weight")
        codes = unpack_bits(words.contiguous().view(torch.uint8).flatten(0, -2), self.bits)
        scales = self._part("scales").flatten(0, -2)
        if self.mode == "affine":
            minimums = self._part("biases").flatten(0, -2).to(torch.float32)
            return QuantisedMatrix(4 if self.bits <= 4 else 8, self.group, codes, scales.to(torch.float32), minimums)
        halves = e8m0(scales, bias=128) if self.mode == "mxfp4" else scales.view(torch.float8_e4m3fn).to(torch.float32) * 0.5
        return QuantisedMatrix(8, self.group, e2m1_codes(codes), halves, halves * -float(E2M1_OFFSET))

    def _part(self, name: str) -> torch.Tensor:
        tensor = self.files.tensor(f"{self.module}.{name}")
        return tensor if self.index is None else tensor[self.index]


def mlx_entry(files: TensorFiles, module: str, quantisation: Mapping[str, Any]) -> MlxEntry:
    """The entry of a quantised module; its width is told from the shapes, its group from the configuration.

    Args:
        quantisation: the ``quantization`` section; a key named as the module overrides the general values.

    Raises:
        StartupError: the shapes fit no known width, or the mode is unknown.
    """
    own = quantisation.get(module)
    settings = {**quantisation, **own} if isinstance(own, dict) else quantisation
    mode = "affine" if f"{module}.biases" in files else str(settings.get("mode", "mxfp4"))
    if mode != "affine" and mode not in _GROUPS:
        raise StartupError(f"{module} is quantised in the mode {mode!r}, which is not supported")
    group = int(settings.get("group_size", _GROUPS.get(mode, 64)))
    packed_words, groups = files.shape(f"{module}.weight")[-1], files.shape(f"{module}.scales")[-1]
    bits, rest = divmod(packed_words * 32, groups * group)
    if rest or bits not in _WIDTHS:
        raise StartupError(
            f"{module} has {packed_words} packed words and {groups} scales a row: no bit width fits groups of {group}"
        )
    return MlxEntry(files, module, mode, bits, group)
