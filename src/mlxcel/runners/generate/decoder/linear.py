"""Linear layers of the torch decoder: dense, or 4-bit packed where a checkpoint's groups map onto torch's packed kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

from mlxcel.runners.generate.lora.bank import AdapterBank
from mlxcel.runners.generate.lora.files import LowRank

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint, QuantisedMatrix

_PACKED_GROUPS = (32, 64, 128)  # what aten::_weight_int4pack_mm_for_cpu accepts


class Linear(Protocol):
    """``x [tokens, in] -> [tokens, out]``."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class DenseLinear:
    """``x @ weight.T + bias`` with a weight [out, in] in the compute dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class Int4Linear:
    """4-bit codes in torch's packed layout, bfloat16 in and out.

    The kernel computes ``w = (code - 8) * scale + zero``; with ``zero = minimum + 8 * scale`` that is a group's affine form.
    Scale and zero are rounded to bfloat16 (relative error up to 2^-9), the only departure from the checkpoint's values.
    """

    def __init__(self, matrix: QuantisedMatrix, bias: torch.Tensor | None) -> None:
        self._group = matrix.group
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.codes.to(torch.int32), 1)
        zeros = matrix.minimums + 8 * matrix.scales
        self._scales_and_zeros = torch.stack((matrix.scales, zeros), dim=-1).transpose(0, 1).to(torch.bfloat16).contiguous()
        self._bias = bias

    @staticmethod
    def maps(matrix: QuantisedMatrix) -> bool:
        """True when the packed kernel can hold this matrix."""
        return matrix.bits == 4 and matrix.group in _PACKED_GROUPS and matrix.shape[0] % 16 == 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, self._group, self._scales_and_zeros)
        return y if self._bias is None else y + self._bias


class AdaptedLinear:
    """A linear layer with the low-rank updates of the tokens' adapters.

    Args:
        outputs_only: the layer runs only for the tokens whose logits are wanted.
    """

    def __init__(self, linear: Linear, bank: AdapterBank, updates: Mapping[int, LowRank], *, outputs_only: bool) -> None:
        self._linear = linear
        self._bank = bank
        self._updates = updates
        self._outputs_only = outputs_only

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._bank.add(self._updates, x, self._linear(x), outputs_only=self._outputs_only)


class LinearLoader:
    """Builds linear layers from a checkpoint in one compute dtype on one device, with the updates of LoRA adapters."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, bank: AdapterBank) -> None:
        self._checkpoint = checkpoint
        self._bank = bank
        self._dtype = dtype
        self._device = device
        self._packs = dtype == torch.bfloat16 and device.type == "cpu"

    def vector(self, name: str) -> torch.Tensor:
        """A norm weight or a bias in the compute dtype."""
        return self.dense(name)

    def dense(self, name: str) -> torch.Tensor:
        """A tensor in the compute dtype; a copy, since a checkpoint may hand out views of a file."""
        tensor: torch.Tensor = self._checkpoint.tensor(name, self._dtype)
        return tensor.to(self._device, copy=True).contiguous()

    def linear(self, names: Sequence[str], *, biased: bool) -> Linear:
        """One layer from matrices that read the same input, their outputs side by side in the order of ``names``."""
        bias = torch.cat([self.vector(f"{name}.bias") for name in names]) if biased else None
        matrix = self._fused_matrix(names) if self._packs else None
        if matrix is not None:
            return self._adapted(Int4Linear(matrix, bias), names)
        return self._adapted(DenseLinear(torch.cat([self.dense(f"{name}.weight") for name in names]), bias), names)

    def head(self, name: str, tied_embedding: torch.Tensor | None) -> Linear:
        """The vocabulary projection; a tied one shares the embedding's memory unless a packed form is at hand."""
        packed = self._fused_matrix((name,)) if self._packs else None
        if packed is not None:
            return self._adapted(Int4Linear(packed, None), (name,), outputs_only=True)
        weight = self.dense(f"{name}.weight") if tied_embedding is None else tied_embedding
        return self._adapted(DenseLinear(weight, None), (name,), outputs_only=True)

    def _adapted(self, linear: Linear, names: Sequence[str], *, outputs_only: bool = False) -> Linear:
        if not self._bank.count:
            return linear
        updates = self._bank.claim([(name, self._checkpoint.shape(f"{name}.weight")) for name in names])
        return AdaptedLinear(linear, self._bank, updates, outputs_only=outputs_only) if updates else linear

    def _fused_matrix(self, names: Sequence[str]) -> QuantisedMatrix | None:
        parts = [self._checkpoint.quantised(f"{name}.weight") for name in names]
        known = [part for part in parts if part is not None and Int4Linear.maps(part)]
        if len(known) < len(parts) or len({part.group for part in known}) > 1:
            return None
        if len(known) == 1:
            return known[0]
        return type(known[0])(
            bits=4,
            group=known[0].group,
            codes=torch.cat([part.codes for part in known]),
            scales=torch.cat([part.scales for part in known]),
            minimums=torch.cat([part.minimums for part in known]),
        )
