"""Bit-packed codes, and the small float formats of quantised safetensors."""

from __future__ import annotations

import math

import torch

# The 16 values of E2M1 in units of one half (OCP Microscaling Formats 1.0); + 12 makes codes 0..24 of them.
E2M1_HALVES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
E2M1_OFFSET = 12


def unpack_bits(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of ``bits`` bits from a little-endian stream per row, uint8 [..., bytes] -> uint8 [..., bytes * 8 / bits]."""
    if bits == 8:
        return packed
    unit_bits = math.lcm(bits, 8)  # after so many bits a code starts on a byte again
    units = packed.reshape(*packed.shape[:-1], -1, unit_bits // 8)
    codes = packed.new_empty((*units.shape[:-1], unit_bits // bits))
    for index in range(unit_bits // bits):
        byte, shift = divmod(index * bits, 8)
        code = units[..., byte] >> shift
        if shift + bits > 8:
            code |= units[..., byte + 1] << (8 - shift)
        codes[..., index] = code & ((1 << bits) - 1)
    return codes.flatten(-2)


def e2m1_codes(nibbles: torch.Tensor) -> torch.Tensor:
    """E2M1 floats (uint8 0..15) as codes 0..24: value = (code - 12) / 2."""
    return code_table(E2M1_HALVES, E2M1_OFFSET)[nibbles.to(torch.int32)]


def code_table(levels: tuple[int, ...], offset: int) -> torch.Tensor:
    """uint8 [levels]: each integer level plus ``offset``."""
    return torch.tensor(levels, dtype=torch.int16).add_(offset).to(torch.uint8)


def e8m0(exponents: torch.Tensor, bias: int = 127) -> torch.Tensor:
    """E8M0 scales (uint8) as float32 ``2 ** (e - bias)``; bias 128 gives the unit of ``E2M1_HALVES``."""
    powers = torch.tensor([2.0 ** (exponent - bias) for exponent in range(256)], dtype=torch.float32)
    return powers[exponents.to(torch.int32)]
