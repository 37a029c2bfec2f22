"""A checkpoint's tensors as the compiled library takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mlxcel.runners.kernels.library import Format, MatrixSource

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint, QuantisedMatrix

_FORMATS = {torch.bfloat16: Format.BF16, torch.float16: Format.F16, torch.float32: Format.F32}


@dataclass(frozen=True, slots=True)
class HeldMatrix:
    """A matrix for the library, with the tensors its addresses point into."""

    source: MatrixSource
    tensors: tuple[torch.Tensor, ...]


def affine_matrix(matrix: QuantisedMatrix, bias: torch.Tensor | None = None) -> HeldMatrix:
    """A quantised matrix; ``bias``: [out]."""
    tensors = (matrix.codes.contiguous(), matrix.scales.float().contiguous(), matrix.minimums.float().contiguous())
    return _held(Format.U4 if matrix.bits == 4 else Format.U8, matrix.group, tensors, bias)


def dense_matrix(weight: torch.Tensor, bias: torch.Tensor | None = None) -> HeldMatrix:
    """A bfloat16, float16 or float32 matrix [out, in]."""
    return _held(_FORMATS[weight.dtype], 0, (weight.contiguous(),), bias)


def _held(kind: Format, group: int, tensors: tuple[torch.Tensor, ...], bias: torch.Tensor | None) -> HeldMatrix:
    out, inputs = tensors[0].shape
    addresses: list[int | None] = [tensor.data_ptr() for tensor in tensors]
    addresses += [None] * (3 - len(addresses))
    if bias is not None:
        bias = bias.float().contiguous()
        tensors = (*tensors, bias)
    return HeldMatrix(MatrixSource(kind, out, inputs, group, *addresses, None if bias is None else bias.data_ptr()), tensors)


class MatrixReader:
    """Reads matrices in the form the library computes with.

    Args:
        checkpoint: the weights.
        dense_dtype: of dense matrices that are not stored in 16 bits.
        exact: decode everything to float32.
    """

    def __init__(self, checkpoint: Checkpoint, dense_dtype: torch.dtype, *, exact: bool) -> None:
        self._checkpoint = checkpoint
        self._dense_dtype = dense_dtype
        self._exact = exact

    def matrix(self, name: str, *, biased: bool = False) -> HeldMatrix:
        """The matrix ``name.weight`` with its bias."""
        bias = self.vector(f"{name}.bias") if biased else None
        quantised = None if self._exact else self._checkpoint.quantised(f"{name}.weight")
        if quantised is not None:
            return affine_matrix(quantised, bias)
        weight = self._checkpoint.tensor(f"{name}.weight")
        if self._exact:
            weight = weight.float()
        elif weight.dtype not in (torch.bfloat16, torch.float16):
            weight = weight.to(self._dense_dtype)
        return dense_matrix(weight, bias)

    def vector(self, name: str) -> torch.Tensor:
        """A norm weight or a bias, float32."""
        return self._checkpoint.tensor(name, torch.float32).contiguous()
