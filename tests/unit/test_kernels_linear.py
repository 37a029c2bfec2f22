"""Matrix products of the compiled kernels against float64, at every level this machine has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.runners.kernels.library import KernelError, Level, Library, load_library
from mlxcel.runners.kernels.sources import HeldMatrix, affine_matrix, dense_matrix
from mlxcel.runners.weights import QuantisedMatrix

LOADED = load_library()
LEVELS = [] if isinstance(LOADED, str) else LOADED.levels()
pytestmark = pytest.mark.skipif(isinstance(LOADED, str), reason="the kernels were not built")

INTEGER_ROWS = 23  # so many rows are multiplied in integers at every level; more may use tiles


def library() -> Library:
    assert not isinstance(LOADED, str)
    return LOADED


def product(level: Level, matrix: HeldMatrix, x: torch.Tensor, threads: int = 1) -> torch.Tensor:
    y = torch.full((len(x), matrix.source.out), float("nan"))
    library().linear(level, threads, matrix.source, x.data_ptr(), len(x), y.data_ptr())
    return y


def random_affine(seed: int, bits: int, group: int, out: int, inputs: int) -> QuantisedMatrix:
    """Scales and minimums as fp16 holds them, like most formats store them."""
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (out, inputs), dtype=torch.uint8, generator=draw)
    scales = (torch.rand(out, inputs // group, generator=draw) + 0.5) / (1 << bits)
    minimums = -scales * (1 << bits) * torch.rand(out, inputs // group, generator=draw)
    return QuantisedMatrix(bits, group, codes, scales.half().float(), minimums.half().float())


def quantised_activations(x: torch.Tensor) -> torch.Tensor:
    """What the integer kernels see: int8 with one scale per 32 inputs, as float64. Short rows are padded with zeros."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    peaks = padded.abs().amax(-1, keepdim=True)
    codes = (padded * torch.where(peaks > 0, 127.0 / peaks, 0.0)).round()
    return (codes.double() * (peaks / 127.0).double()).view(len(x), -1)[:, : x.shape[1]]


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


def activations(seed: int, rows: int, inputs: int) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 32), (4, 64), (4, 128), (8, 16), (8, 32), (8, 128)])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 23])
def test_affine_product_is_exact_for_quantised_activations(level: Level, bits: int, group: int, rows: int) -> None:
    matrix = random_affine(rows, bits, group, out=37, inputs=256)
    x = activations(rows, rows, 256)
    expected = quantised_activations(x) @ matrix.dense().double().T
    assert error(product(level, affine_matrix(matrix), x), expected) < 2e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 32), (8, 16), (8, 64)])
@pytest.mark.parametrize("rows", [24, 33, 64, 70])
def test_affine_product_of_many_rows_stays_near_float64(level: Level, bits: int, group: int, rows: int) -> None:
    matrix = random_affine(rows, bits, group, out=50, inputs=192)
    x = activations(rows, rows, 192)
    assert error(product(level, affine_matrix(matrix), x), x.double() @ matrix.dense().double().T) < 8e-3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", ["4 bits", "8 bits", "bf16"])
def test_deep_matrices_are_multiplied_in_slices(level: Level, form: str) -> None:
    """More inputs than the decoded weights of a task may take up at once."""
    inputs, rows = 4288, 70
    x = activations(8, rows, inputs)
    if form == "bf16":
        weight = torch.randn(37, inputs, generator=torch.Generator().manual_seed(8)).bfloat16()
        y, dense = product(level, dense_matrix(weight), x, threads=2), weight.double()
    else:
        matrix = random_affine(8, int(form[0]), 32, 37, inputs)
        y, dense = product(level, affine_matrix(matrix), x, threads=2), matrix.dense().double()
    assert error(y, x.double() @ dense.T) < 8e-3


@pytest.mark.parametrize("level", LEVELS)
def test_groups_of_sixteen_may_end_inside_a_unit_of_32_inputs(level: Level) -> None:
    matrix = random_affine(1, 8, 16, out=16, inputs=48)
    x = activations(1, 3, 48)
    expected = quantised_activations(x) @ matrix.dense().double().T
    assert error(product(level, affine_matrix(matrix), x), expected) < 2e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [3.7e-9, 1e6])
def test_scales_that_fp16_cannot_hold_are_kept(level: Level, scale: float) -> None:
    plain = random_affine(2, 4, 32, out=20, inputs=64)
    matrix = QuantisedMatrix(4, 32, plain.codes, plain.scales * scale, plain.minimums * scale)
    x = activations(2, 4, 64)
    expected = quantised_activations(x) @ matrix.dense().double().T
    assert error(product(level, affine_matrix(matrix), x), expected) < 2e-6


@pytest.mark.parametrize("level", LEVELS)
def test_codes_and_activations_at_their_limits_do_not_saturate(level: Level) -> None:
    x = torch.ones(2, 64)
    x[1] = -1.0
    for bits in (4, 8):
        codes = torch.full((16, 64), (1 << bits) - 1, dtype=torch.uint8)
        matrix = QuantisedMatrix(bits, 32, codes, torch.ones(16, 2), torch.zeros(16, 2))
        y = product(level, affine_matrix(matrix), x)
        assert torch.equal(y, torch.tensor([[1.0], [-1.0]]).expand(2, 16) * 64 * ((1 << bits) - 1))


@pytest.mark.parametrize("level", LEVELS)
def test_zero_and_tiny_activations_give_zero_products_not_nan(level: Level) -> None:
    matrix = affine_matrix(random_affine(3, 4, 32, out=16, inputs=64))
    x = torch.zeros(2, 64)
    x[1, 0] = 1e-40
    assert product(level, matrix, x).abs().max() < 1e-30


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 2e-6), (torch.float16, 2e-6), (torch.bfloat16, 4e-3)], ids=["fp32", "fp16", "bf16"]
)
@pytest.mark.parametrize(("rows", "out", "inputs"), [(1, 5, 7), (2, 16, 32), (4, 33, 100), (9, 130, 65), (40, 24, 96)])
def test_dense_product(level: Level, dtype: torch.dtype, limit: float, rows: int, out: int, inputs: int) -> None:
    weight = torch.randn(out, inputs, generator=torch.Generator().manual_seed(out)).to(dtype)
    x = activations(out, rows, inputs)
    assert error(product(level, dense_matrix(weight), x), x.double() @ weight.double().T) < limit


@pytest.mark.parametrize("level", LEVELS)
def test_bias_is_added(level: Level) -> None:
    bias = torch.linspace(-1, 1, 21)
    matrix, x = torch.zeros(21, 32), activations(4, 3, 32)
    assert torch.equal(product(level, dense_matrix(matrix, bias), x), bias.expand(3, 21))
    quantised = random_affine(4, 4, 32, out=21, inputs=32)
    difference = product(level, affine_matrix(quantised, bias), x) - product(level, affine_matrix(quantised), x)
    assert torch.allclose(difference, bias.expand(3, 21), atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["affine", "dense"])
def test_a_row_does_not_depend_on_the_rows_beside_it(level: Level, kind: str) -> None:
    if kind == "affine":
        matrix, rows = affine_matrix(random_affine(5, 4, 32, out=48, inputs=128)), INTEGER_ROWS
    else:
        matrix, rows = dense_matrix(torch.randn(48, 128, generator=torch.Generator().manual_seed(5))), 70
    x = activations(5, rows, 128)
    together = product(level, matrix, x)
    for row in range(rows):
        assert torch.equal(product(level, matrix, x[row : row + 1]), together[row : row + 1])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [3, 40])
def test_threads_do_not_change_a_bit(level: Level, rows: int) -> None:
    matrix = affine_matrix(random_affine(6, 8, 64, out=200, inputs=128))
    x = activations(6, rows, 128)
    single = product(level, matrix, x)
    assert all(torch.equal(product(level, matrix, x, threads), single) for threads in (2, 3))


@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 5), st.sampled_from([4, 8]), st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
def test_levels_agree(rows: int, out: int, units: int, bits: int, seed: int) -> None:
    matrix = random_affine(seed, bits, 32, out, 32 * units)
    x = activations(seed, rows, 32 * units)
    expected = x.double() @ matrix.dense().double().T
    # Sums may cancel, so the error is held against the size of what is summed.
    size = x.double().norm(dim=1, keepdim=True) * matrix.dense().double().norm(dim=1)
    for level in LEVELS:
        assert float(((product(level, affine_matrix(matrix), x) - expected).abs() / size).max()) < 2e-2


def test_unusable_matrices_are_refused() -> None:
    x = torch.zeros(1, 48)
    plain = random_affine(7, 4, 16, out=16, inputs=48)
    for group in (24, 32):
        odd = QuantisedMatrix(4, group, plain.codes, torch.ones(16, 2), torch.ones(16, 2))
        with pytest.raises(KernelError, match="groups of 16, 32, 64 or 128"):
            product(LEVELS[0], affine_matrix(odd), x)


def test_a_missing_level_is_refused() -> None:
    missing = [level for level in Level if level not in LEVELS]
    for level in missing:
        with pytest.raises(KernelError, match="lacks the kernel level"):
            product(level, dense_matrix(torch.zeros(1, 32)), torch.zeros(1, 32))
