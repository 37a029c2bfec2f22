"""Linear layers: the packed 4-bit kernel against float64, and when it is used."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from mlxcel.runners.generate.decoder.linear import DenseLinear, Int4Linear, LinearLoader
from mlxcel.runners.generate.lora.bank import AdapterBank
from mlxcel.runners.weights import QuantisedMatrix

CPU = torch.device("cpu")


def matrix(out_features: int, in_features: int, group: int, *, bits: int = 4, seed: int = 0) -> QuantisedMatrix:
    generator = torch.Generator().manual_seed(seed)
    groups = in_features // group
    return QuantisedMatrix(
        bits,
        group,
        torch.randint(0, 1 << bits, (out_features, in_features), generator=generator, dtype=torch.uint8),
        torch.rand(out_features, groups, generator=generator) * 0.02 + 0.001,
        -torch.rand(out_features, groups, generator=generator) * 0.2,
    )


class Weights:
    """The part of a checkpoint that a loader reads."""

    def __init__(self, matrices: Mapping[str, QuantisedMatrix], dense: Mapping[str, torch.Tensor] | None = None) -> None:
        self._matrices = matrices
        self._dense = dense or {}

    def quantised(self, name: str) -> QuantisedMatrix | None:
        return self._matrices.get(name)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return self._matrices[name].dense().to(dtype) if name in self._matrices else self._dense[name].to(dtype)


def loader(weights: Weights, dtype: torch.dtype = torch.bfloat16) -> LinearLoader:
    return LinearLoader(weights, dtype, CPU, AdapterBank((), dtype, CPU))  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_packed_kernel_computes_the_affine_form(group: int, rows: int) -> None:
    weights = matrix(48, 256, group)
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = x.double() @ weights.dense().double().T
    error = (Int4Linear(weights, None)(x).double() - expected).abs().max() / expected.abs().max()
    assert error < 0.01


def test_packed_kernel_is_exact_where_bfloat16_holds_scales_and_sums() -> None:
    """Powers of two as scales, small integers as inputs: a shifted code or a wrong zero point would show."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(16, 4)
    scales = torch.tensor([[1.0, 0.5]]).repeat(16, 1)
    minimums = torch.tensor([[-4.0, 2.0]]).repeat(16, 1)
    weights = QuantisedMatrix(4, 32, codes, scales, minimums)
    x = torch.zeros(64, 64)
    x.fill_diagonal_(1.0)
    torch.testing.assert_close(Int4Linear(weights, None)(x.bfloat16()).float(), weights.dense().T, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("weights", "maps"),
    [
        (matrix(32, 64, 32), True),
        (matrix(24, 64, 32), False),
        (matrix(32, 64, 16), False),
        (matrix(32, 64, 32, bits=8), False),
    ],
    ids=["fits", "rows not a multiple of 16", "group 16", "8-bit"],
)
def test_only_what_the_kernel_holds_is_packed(weights: QuantisedMatrix, maps: bool) -> None:
    assert Int4Linear.maps(weights) is maps
    layer = loader(Weights({"a.weight": weights})).linear(("a",), biased=False)
    assert isinstance(layer, Int4Linear if maps else DenseLinear)


def test_float32_decodes_instead_of_packing() -> None:
    weights = matrix(32, 64, 32)
    layer = loader(Weights({"a.weight": weights}), torch.float32).linear(("a",), biased=False)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer(x), x @ weights.dense().T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_layers_of_one_input_come_out_side_by_side_with_their_biases(dtype: torch.dtype) -> None:
    parts = {"q.weight": matrix(32, 64, 32, seed=1), "k.weight": matrix(16, 64, 32, seed=2)}
    biases = {"q.bias": torch.arange(32.0), "k.bias": -torch.arange(16.0)}
    layer = loader(Weights(parts, biases), dtype).linear(("q", "k"), biased=True)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    dense = torch.cat([part.dense() for part in parts.values()])
    expected = x.double() @ dense.double().T + torch.cat(list(biases.values())).double()
    torch.testing.assert_close(layer(x).double(), expected, rtol=0.02, atol=0.1)


def test_parts_of_different_groups_are_decoded() -> None:
    parts = {"q.weight": matrix(32, 128, 32), "k.weight": matrix(32, 128, 64)}
    assert isinstance(loader(Weights(parts)).linear(("q", "k"), biased=False), DenseLinear)


def test_a_tied_head_shares_the_embedding() -> None:
    embedding = torch.randn(40, 64)
    head = loader(Weights({}, {"e.weight": embedding}), torch.float32).head("e", embedding)
    embedding[0] += 1.0
    torch.testing.assert_close(head(torch.eye(64)), embedding.T.contiguous())


def test_loaded_tensors_do_not_alias_the_checkpoint() -> None:
    stored = torch.zeros(4)
    loaded = loader(Weights({}, {"n": stored}), torch.float32).vector("n")
    stored += 1.0
    assert loaded.tolist() == [0.0] * 4
