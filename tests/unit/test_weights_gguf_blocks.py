"""GGUF block formats, against the gguf package's own dequantiser."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlxcel.runners.weights.gguf.blocks import affine_rows, dense_rows
from mlxcel.runners.weights.matrix import QuantisedMatrix

# format -> (code width, inputs per scale, largest code)
AFFINE = {
    Kind.Q4_0: (4, 32, 15),
    Kind.Q4_1: (4, 32, 15),
    Kind.Q5_0: (8, 32, 31),
    Kind.Q5_1: (8, 32, 31),
    Kind.Q8_0: (8, 32, 255),
    Kind.Q2_K: (4, 16, 3),
    Kind.Q3_K: (4, 16, 7),
    Kind.Q4_K: (4, 32, 15),
    Kind.Q5_K: (8, 32, 31),
    Kind.Q6_K: (8, 16, 63),
    Kind.TQ2_0: (4, 128, 3),
    Kind.IQ4_NL: (8, 32, 241),
    Kind.IQ4_XS: (8, 32, 241),
    Kind.MXFP4: (8, 32, 24),
}
CODEBOOKS = (Kind.TQ1_0, Kind.IQ1_S, Kind.IQ1_M, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S)
# format -> distance between neighbouring values, as a part of the largest weight
STEPS = {
    Kind.Q4_0: 1 / 8,
    Kind.Q4_1: 2 / 15,
    Kind.Q5_0: 1 / 16,
    Kind.Q5_1: 2 / 31,
    Kind.Q8_0: 1 / 127,
    Kind.TQ2_0: 1.0,
    Kind.MXFP4: 1 / 2,
}


def random_blocks(kind: Kind, rows: int = 6, blocks: int = 5, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Rows of random bytes whose scales are finite: every bit pattern of codes and small scales is a valid block."""
    block_bytes = GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks * block_bytes), dtype=np.uint8)
    if kind == Kind.MXFP4:  # exponents near one, as weights have them
        raw[:, ::block_bytes] = raw[:, ::block_bytes] % 32 + 100
    return raw


def reference(raw: npt.NDArray[np.uint8], kind: Kind) -> torch.Tensor:
    with np.errstate(all="ignore"):  # random half floats hold infinities
        return torch.from_numpy(dequantize(raw, kind).astype(np.float32))


def affine(raw: npt.NDArray[np.uint8], kind: Kind) -> QuantisedMatrix:
    matrix = affine_rows(torch.from_numpy(raw), kind)
    assert matrix is not None
    return matrix


@pytest.mark.parametrize("kind", AFFINE, ids=lambda kind: kind.name)
def test_affine_form_equals_the_reference_bit_for_bit(kind: Kind) -> None:
    raw = random_blocks(kind)
    expected = reference(raw, kind)
    matrix = affine(raw, kind)
    finite = expected.isfinite()
    assert finite.float().mean() > 0.8
    assert torch.equal(matrix.dense()[finite], expected[finite])
    assert torch.equal(dense_rows(torch.from_numpy(raw), kind)[finite], expected[finite])


@pytest.mark.parametrize("kind", AFFINE, ids=lambda kind: kind.name)
def test_affine_form_has_the_documented_shape(kind: Kind) -> None:
    bits, group, largest = AFFINE[kind]
    matrix = affine(random_blocks(kind), kind)
    columns = 5 * GGML_QUANT_SIZES[kind][0]
    assert (matrix.bits, matrix.group) == (bits, group)
    assert matrix.shape == (6, columns)
    assert matrix.codes.dtype == torch.uint8
    assert int(matrix.codes.max()) <= largest < 2**bits
    for values in (matrix.scales, matrix.minimums):
        assert values.dtype == torch.float32
        assert values.shape == (6, columns // group)
        assert values.is_contiguous()


@pytest.mark.parametrize("kind", CODEBOOKS, ids=lambda kind: kind.name)
def test_codebook_formats_are_dense_only(kind: Kind) -> None:
    raw = random_blocks(kind)
    expected = reference(raw, kind)
    assert affine_rows(torch.from_numpy(raw), kind) is None
    finite = expected.isfinite()
    with np.errstate(all="ignore"):
        assert torch.equal(dense_rows(torch.from_numpy(raw), kind)[finite], expected[finite])


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)]
)
def test_plain_floats_are_views(kind: Kind, dtype: torch.dtype) -> None:
    values = torch.arange(-8, 8).to(dtype).view(2, 8)
    raw = values.view(torch.uint8)
    assert affine_rows(raw, kind) is None
    decoded = dense_rows(raw, kind)
    assert torch.equal(decoded, values)
    assert decoded.data_ptr() == values.data_ptr()


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(list(STEPS)),
    steps=hnp.arrays(np.int16, (3, 512), elements=st.integers(-256, 256)),
)
def test_quantised_weights_come_back_close(kind: Kind, steps: npt.NDArray[np.int16]) -> None:
    weights = steps.astype(np.float32) / 64  # no subnormal numbers: the gguf package's quantiser divides by them
    raw = quantize(weights, kind)
    matrix = affine(raw, kind)
    assert torch.equal(matrix.dense(), reference(raw, kind))
    error = float((matrix.dense() - torch.from_numpy(weights)).abs().max())
    assert error <= STEPS[kind] * float(np.abs(weights).max()) * 1.01 + 1e-6
