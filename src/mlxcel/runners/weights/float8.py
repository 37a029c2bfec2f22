"""Block-scaled float formats of Hugging Face checkpoints: fine-grained FP8, and MXFP4 experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.packing import E2M1_HALVES, e8m0, unpack_bits
from mlxcel.runners.weights.tensor_files import TensorFiles


@dataclass(frozen=True, slots=True)
class Fp8Entry:
    """``weight`` in FP8 times ``weight_scale_inv``: one scale, or one per block of ``block`` rows and columns.

    The last blocks may be cut. ``block`` None divides the tensor evenly among the scales.
    """

    files: TensorFiles
    name: str
    scale_name: str
    block: tuple[int, ...] | None

    def shape(self) -> tuple[int, ...]:
        return self.files.shape(self.name)

    def dense(self) -> torch.Tensor:
        weight = self.files.tensor(self.name).to(torch.float32)
        scales = self.files.tensor(self.scale_name).to(torch.float32)
        if scales.numel() == 1:
            return weight.mul_(scales.reshape(()))
        rows, columns = weight.shape[-2:]
        block_rows, block_columns = self.block or (-(-rows // scales.shape[-2]), -(-columns // scales.shape[-1]))
        spread = scales.repeat_interleave(block_rows, -2).repeat_interleave(block_columns, -1)
        return weight.mul_(spread[..., :rows, :columns])

    def quantised(self) -> QuantisedMatrix | None:
        return None


@dataclass(frozen=True, slots=True)
class Mxfp4Entry:
    """gpt-oss experts: ``_blocks`` uint8 [experts, rows, groups, 16] and ``_scales`` uint8 [experts, rows, groups].

    The model uses them as [experts, groups * 32, rows].
    """

    files: TensorFiles
    name: str

    def shape(self) -> tuple[int, ...]:
        experts, rows, groups, half = self.files.shape(f"{self.name}_blocks")
        return experts, groups * half * 2, rows

    def dense(self) -> torch.Tensor:
        nibbles = unpack_bits(self.files.tensor(f"{self.name}_blocks"), 4)
        values = torch.tensor(E2M1_HALVES, dtype=torch.float32)[nibbles.to(torch.int32)]
        values.mul_(e8m0(self.files.tensor(f"{self.name}_scales"), bias=128).unsqueeze(-1))
        return values.flatten(-2).transpose(-1, -2)

    def quantised(self) -> QuantisedMatrix | None:
        return None
