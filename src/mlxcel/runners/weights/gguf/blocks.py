"""Decodes GGUF block formats into the affine form, and every format into dense float32.

Block layouts: ggml's ``ggml-common.h``. A row of raw bytes is a run of blocks; a decoder sees uint8
[rows, blocks, block_bytes] and returns codes [rows, in], scales and minimums [rows, in / group], in any shape that
flattens to those. Codes are unsigned: where a format subtracts an offset from its integers, ``minimum`` is
``-offset * scale``, which float32 holds exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.packing import E2M1_OFFSET, code_table, e2m1_codes, e8m0

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
    GGMLQuantizationType.F64: torch.float64,
}
# Formats without an affine form, which the gguf package decodes.
_CODEBOOKS = {
    GGMLQuantizationType.TQ1_0,
    GGMLQuantizationType.IQ1_S,
    GGMLQuantizationType.IQ1_M,
    GGMLQuantizationType.IQ2_XXS,
    GGMLQuantizationType.IQ2_XS,
    GGMLQuantizationType.IQ2_S,
    GGMLQuantizationType.IQ3_XXS,
    GGMLQuantizationType.IQ3_S,
}
# The 16 levels of the non-linear 4-bit formats; as integers they fit 8-bit codes exactly.
_NONLINEAR_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def can_decode(kind: GGMLQuantizationType) -> bool:
    """Whether tensors of this format can be read."""
    return kind in _FLOATS or kind in _AFFINE or kind in _CODEBOOKS


def dense_rows(raw: torch.Tensor, kind: GGMLQuantizationType) -> torch.Tensor:
    """Decode raw bytes [rows, row_bytes] to [rows, in]: the stored dtype for plain floats (no copy), else float32."""
    if kind in _FLOATS:
        return raw.view(_FLOATS[kind])
    matrix = affine_rows(raw, kind)
    if matrix is not None:
        return matrix.dense()
    return torch.from_numpy(dequantize(raw.numpy(), kind))


def affine_rows(raw: torch.Tensor, kind: GGMLQuantizationType) -> QuantisedMatrix | None:
    """Decode raw bytes [rows, row_bytes] to the affine form; None for formats that have none (floats, codebooks)."""
    form = _AFFINE.get(kind)
    if form is None:
        return None
    _, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = raw.view(raw.shape[0], -1, block_bytes)
    codes, scales, minimums = form.decode(blocks)
    rows = raw.shape[0]
    return QuantisedMatrix(
        form.bits, form.group, codes.view(rows, -1), scales.reshape(rows, -1), minimums.reshape(rows, -1).contiguous()
    )


@dataclass(frozen=True, slots=True)
class _AffineForm:
    bits: int
    group: int
    decode: Callable[[torch.Tensor], _Parts]


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at byte ``start`` of every block, as float32 [rows, blocks, 1]."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).to(torch.float32)


def _fields(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Split bytes [..., run] into bit fields, lowest first: [..., fields, run]. The fields of a byte lie one run apart."""
    count = 8 // width
    fields = packed.new_empty((*packed.shape[:-1], count, packed.shape[-1]))
    for index in range(count):
        torch.bitwise_right_shift(packed, width * index, out=fields[..., index, :])
    if width < 8:
        fields.bitwise_and_((1 << width) - 1)
    return fields


def _split(tensor: torch.Tensor, axis: int, *sizes: int) -> torch.Tensor:
    """Split one axis, counted from the end (-1 is the last), into several."""
    shape = list(tensor.shape)
    axis += len(shape)
    return tensor.reshape(*shape[:axis], *sizes, *shape[axis + 1 :])


def _runs(blocks: torch.Tensor, start: int, stop: int, run: int) -> torch.Tensor:
    """Bytes ``start:stop`` of every block in runs: [rows, blocks, runs, run]."""
    return _split(blocks[..., start:stop], -1, -1, run)


def _centred(codes: torch.Tensor, scales: torch.Tensor, offset: int) -> _Parts:
    return codes, scales, scales * -float(offset)


def _q4_0(blocks: torch.Tensor) -> _Parts:
    return _centred(_fields(blocks[..., 2:18], 4), _half(blocks, 0), 8)


def _q4_1(blocks: torch.Tensor) -> _Parts:
    return _fields(blocks[..., 4:20], 4), _half(blocks, 0), _half(blocks, 2)


def _fifth_bits(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The high bits of 5-bit codes, one bit per element in order: [rows, blocks, 2, 16], each 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = blocks[..., start : start + 4].unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_(1)
    return _split(bits.flatten(-2), -1, 2, 16).bitwise_left_shift(4)


def _q5_0(blocks: torch.Tensor) -> _Parts:
    codes = _fields(blocks[..., 6:22], 4).bitwise_or_(_fifth_bits(blocks, 2))
    return _centred(codes, _half(blocks, 0), 16)


def _q5_1(blocks: torch.Tensor) -> _Parts:
    codes = _fields(blocks[..., 8:24], 4).bitwise_or_(_fifth_bits(blocks, 4))
    return codes, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> _Parts:
    codes = blocks[..., 2:34].contiguous().bitwise_xor_(0x80)  # two's complement to excess 128
    return _centred(codes, _half(blocks, 0), 128)


def _q2_k(blocks: torch.Tensor) -> _Parts:
    codes = _fields(_runs(blocks, 16, 80, 32), 2)
    packed = blocks[..., 0:16]
    scales = _half(blocks, 80) * packed.bitwise_and(15).to(torch.float32)
    minimums = _half(blocks, 82) * packed.bitwise_right_shift(4).to(torch.float32)
    return codes, scales, -minimums


def _q3_k(blocks: torch.Tensor) -> _Parts:
    low = _fields(_runs(blocks, 32, 96, 32), 2)  # [rows, blocks, 2, 4, 32]
    high = _split(_fields(blocks[..., 0:32], 1), -2, 2, 4)
    codes = low.bitwise_or_(high.bitwise_left_shift_(2))
    low_scales = _fields(blocks[..., 96:104], 4).flatten(-2)
    high_scales = _fields(blocks[..., 104:108], 2).flatten(-2)
    six_bits = low_scales.bitwise_or_(high_scales.bitwise_left_shift_(4))
    return _centred(codes, _half(blocks, 108) * (six_bits.to(torch.float32) - 32), 4)


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 8 scales and 8 minimums that Q4_K and Q5_K pack into 12 bytes, as float32 [rows, blocks, 8]."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), dim=-1)
    minimums = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales.to(torch.float32), minimums.to(torch.float32)


def _q4_k(blocks: torch.Tensor) -> _Parts:
    scales, minimums = _six_bit_pairs(blocks[..., 4:16])
    codes = _fields(_runs(blocks, 16, 144, 32), 4)
    return codes, _half(blocks, 0) * scales, -(_half(blocks, 2) * minimums)


def _q5_k(blocks: torch.Tensor) -> _Parts:
    scales, minimums = _six_bit_pairs(blocks[..., 4:16])
    codes = _fields(_runs(blocks, 48, 176, 32), 4)  # [rows, blocks, 4, 2, 32]
    high = _split(_fields(blocks[..., 16:48], 1), -2, 4, 2)
    codes.bitwise_or_(high.bitwise_left_shift_(4))
    return codes, _half(blocks, 0) * scales, -(_half(blocks, 2) * minimums)


def _q6_k(blocks: torch.Tensor) -> _Parts:
    low = _fields(_runs(blocks, 0, 128, 64), 4)  # [rows, blocks, 2, 2, 64]: 128 codes a run
    high = _fields(_runs(blocks, 128, 192, 32), 2)  # [rows, blocks, 2, 4, 32]
    codes = low.view(high.shape).bitwise_or_(high.bitwise_left_shift_(4))
    signed = blocks[..., 192:208].contiguous().view(torch.int8).to(torch.float32)
    return _centred(codes, _half(blocks, 208) * signed, 32)


def _tq2_0(blocks: torch.Tensor) -> _Parts:
    codes = _fields(_runs(blocks, 0, 64, 32), 2)
    return _centred(codes, _half(blocks, 64).expand(-1, -1, 2), 1)  # 256 elements share a scale: two groups of 128


def _nonlinear(fields: torch.Tensor) -> torch.Tensor:
    return code_table(_NONLINEAR_LEVELS, 128)[fields.to(torch.int32)]


def _iq4_nl(blocks: torch.Tensor) -> _Parts:
    return _centred(_nonlinear(_fields(blocks[..., 2:18], 4)), _half(blocks, 0), 128)


def _iq4_xs(blocks: torch.Tensor) -> _Parts:
    codes = _nonlinear(_fields(_runs(blocks, 8, 136, 16), 4))
    shifts = torch.tensor([0, 4], dtype=torch.uint8)
    low = blocks[..., 4:8].unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_(15).flatten(-2)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    high = blocks[..., 2:4].unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and_(3).flatten(-2)
    six_bits = low.bitwise_or_(high.bitwise_left_shift_(4))
    return _centred(codes, _half(blocks, 0) * (six_bits.to(torch.float32) - 32), 128)


def _mxfp4(blocks: torch.Tensor) -> _Parts:
    return _centred(e2m1_codes(_fields(blocks[..., 1:17], 4)), e8m0(blocks[..., 0:1], bias=128), E2M1_OFFSET)


_AFFINE = {
    GGMLQuantizationType.Q4_0: _AffineForm(4, 32, _q4_0),
    GGMLQuantizationType.Q4_1: _AffineForm(4, 32, _q4_1),
    GGMLQuantizationType.Q5_0: _AffineForm(8, 32, _q5_0),
    GGMLQuantizationType.Q5_1: _AffineForm(8, 32, _q5_1),
    GGMLQuantizationType.Q8_0: _AffineForm(8, 32, _q8_0),
    GGMLQuantizationType.Q2_K: _AffineForm(4, 16, _q2_k),
    GGMLQuantizationType.Q3_K: _AffineForm(4, 16, _q3_k),
    GGMLQuantizationType.Q4_K: _AffineForm(4, 32, _q4_k),
    GGMLQuantizationType.Q5_K: _AffineForm(8, 32, _q5_k),
    GGMLQuantizationType.Q6_K: _AffineForm(8, 16, _q6_k),
    GGMLQuantizationType.TQ2_0: _AffineForm(4, 128, _tq2_0),
    GGMLQuantizationType.IQ4_NL: _AffineForm(8, 32, _iq4_nl),
    GGMLQuantizationType.IQ4_XS: _AffineForm(8, 32, _iq4_xs),
    GGMLQuantizationType.MXFP4: _AffineForm(8, 32, _mxfp4),
}
