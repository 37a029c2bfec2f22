"""MLX-quantised folders, packed here by an independent writer, and vectors computed once by MLX itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights import open_checkpoint
from mlxcel.runners.weights.packing import unpack_bits
from mlxcel.testing.tiny_models import write_tiny_checkpoint

VECTORS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "mlx_vectors.json").read_text())


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [rows, n] as uint32 words [rows, n * bits / 32], through one big integer a row."""
    words = codes.shape[1] * bits // 32
    rows = []
    for row in codes.tolist():
        number = sum(code << (index * bits) for index, code in enumerate(row))
        rows.append(torch.frombuffer(bytearray(number.to_bytes(words * 4, "little")), dtype=torch.uint8))
    return torch.stack(rows).view(torch.uint32)


def quantise(weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Affine quantisation [..., in] with the group's extremes as end points."""
    grouped = weight.flatten(0, -2).unflatten(-1, (-1, group))  # type: ignore[no-untyped-call]
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales = ((high - low) / (2**bits - 1)).clamp_min(1e-6).to(dtype)
    biases = low.to(dtype)
    codes = ((grouped - biases.float().unsqueeze(-1)) / scales.float().unsqueeze(-1)).round().clamp(0, 2**bits - 1)
    packed = pack(codes.flatten(-2).to(torch.int64), bits)
    lead = weight.shape[:-1]
    return {"weight": packed.view(*lead, -1), "scales": scales.view(*lead, -1), "biases": biases.view(*lead, -1)}


def write_folder(folder: Path, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("label", VECTORS)
def test_values_are_those_of_mlx(label: str, tmp_path: Path) -> None:
    vector = VECTORS[label]
    mode, bits, group = label.split("-")
    tensors = {"m.weight": torch.frombuffer(bytearray.fromhex(vector["weight"]), dtype=torch.uint32).view(1, -1)}
    for part in ("scales", "biases"):
        if part in vector:
            tensors[f"m.{part}"] = torch.tensor(vector[part], dtype=torch.float32 if mode == "affine" else torch.uint8)
    settings_of = {"group_size": int(group), "bits": int(bits), "mode": mode}
    checkpoint = open_checkpoint(write_folder(tmp_path, tensors, quantization=settings_of))
    expected = torch.frombuffer(bytearray.fromhex(vector["values"]), dtype=torch.float32).view(1, 64)
    assert torch.equal(checkpoint.tensor("m.weight"), expected)
    matrix = checkpoint.quantised("m.weight")
    assert (matrix is None) == (mode == "mxfp8")
    assert matrix is None or torch.equal(matrix.dense(), expected)


@settings(max_examples=40, deadline=None)
@given(bits=st.sampled_from([2, 3, 4, 5, 6, 8]), data=st.data())
def test_unpacking_inverts_packing(bits: int, data: st.DataObject) -> None:
    row = st.lists(st.integers(0, 2**bits - 1), min_size=32, max_size=32)
    codes = torch.tensor([data.draw(row), data.draw(row)])
    assert torch.equal(unpack_bits(pack(codes, bits).view(torch.uint8), bits).long(), codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_affine_widths_groups_and_scale_types(bits: int, group: int, dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(bits))
    parts = quantise(weight, bits, group, dtype)
    folder = write_folder(
        tmp_path, {f"a.{name}": part for name, part in parts.items()}, quantization={"group_size": group, "bits": bits}
    )
    checkpoint = open_checkpoint(folder)
    matrix = checkpoint.quantised("a.weight")
    assert matrix is not None
    assert (matrix.bits, matrix.group, matrix.shape) == (4 if bits <= 4 else 8, group, (6, 256))
    assert checkpoint.names() == ["a.weight"]
    assert checkpoint.shape("a.weight") == (6, 256)
    dense = checkpoint.tensor("a.weight")
    assert torch.equal(matrix.dense(), dense)
    span = float(weight.max() - weight.min())
    assert float((dense - weight).abs().max()) <= span * (0.6 / (2**bits - 1) + 0.02)


def test_widths_differ_between_tensors(tmp_path: Path) -> None:
    weights = {name: torch.randn(4, 128) for name in ("q", "v", "plain")}
    tensors = {f"{name}.{part}": value for name in ("q", "v") for part, value in quantise(
        weights[name], 8 if name == "v" else 4, 32 if name == "v" else 64).items()}  # fmt: skip
    tensors["plain.weight"] = weights["plain"]
    folder = write_folder(tmp_path, tensors, quantization={"group_size": 64, "bits": 4, "v": {"group_size": 32, "bits": 8}})
    checkpoint = open_checkpoint(folder)
    forms = {name: checkpoint.quantised(f"{name}.weight") for name in weights}
    assert forms["q"] is not None
    assert (forms["q"].bits, forms["q"].group) == (4, 64)
    assert forms["v"] is not None
    assert (forms["v"].bits, forms["v"].group) == (8, 32)
    assert forms["plain"] is None
    assert checkpoint.kind == "mlx"
    assert "quantization" not in checkpoint.config


def test_width_comes_from_the_shapes_not_from_the_configuration(tmp_path: Path) -> None:
    tensors = {f"a.{name}": part for name, part in quantise(torch.randn(4, 128), 6, 64).items()}
    checkpoint = open_checkpoint(write_folder(tmp_path, tensors, quantization={"group_size": 64, "bits": 4}))
    matrix = checkpoint.quantised("a.weight")
    assert matrix is not None
    assert matrix.shape == (4, 128)
    assert int(matrix.codes.max()) == 63


def test_shapes_that_fit_no_width_are_refused(tmp_path: Path) -> None:
    tensors = {f"a.{name}": part for name, part in quantise(torch.randn(4, 128), 4, 64).items()}
    folder = write_folder(tmp_path, tensors, quantization={"group_size": 37, "bits": 4})
    with pytest.raises(StartupError, match="a has 16 packed words and 2 scales a row: no bit width fits groups of 37"):
        open_checkpoint(folder)


def test_unknown_mode_is_refused(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.zeros(4, 16, dtype=torch.uint32), "a.scales": torch.zeros(4, 4, dtype=torch.uint8)}
    folder = write_folder(tmp_path, tensors, quantization={"group_size": 32, "bits": 4, "mode": "zip"})
    with pytest.raises(StartupError, match="mode 'zip'"):
        open_checkpoint(folder)


def converted(tensors: Mapping[str, torch.Tensor], bits: int, group: int) -> dict[str, torch.Tensor]:
    """What MLX's converter makes of a mixture of experts: stacks, quantised wherever the rows allow."""
    stacked: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            stacked[name] = tensor
        elif ".experts.0." in name:
            module, projection = name.split(".experts.0.")
            parts = [tensors[f"{module}.experts.{expert}.{projection}"] for expert in range(4)]
            projection = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(projection[:2], projection[:-7])
            stacked[f"{module}.switch_mlp.{projection}.weight"] = torch.stack(parts)
    result: dict[str, torch.Tensor] = {}
    for name, tensor in stacked.items():
        if name.endswith(".weight") and tensor.dim() >= 2 and tensor.shape[-1] % group == 0:
            result |= {
                f"{name.removesuffix('weight')}{part}": value for part, value in quantise(tensor, bits, group).items()
            }
        else:
            result[name] = tensor
    return result


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "mixtral", "gemma2"])
def test_family_reads_under_hugging_face_names(family: str, tmp_path: Path) -> None:
    original = load_file(write_tiny_checkpoint(family, tmp_path / "hf") / "model.safetensors")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    folder = write_folder(tmp_path / "mlx", converted(original, 8, 32), **config, quantization={"group_size": 32, "bits": 8})
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.names()) == set(original)
    for name, tensor in original.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert float((checkpoint.tensor(name) - tensor).abs().max()) < 0.02
        matrix = checkpoint.quantised(name)
        assert (matrix is not None) == (tensor.dim() == 2)
        assert matrix is None or torch.equal(matrix.dense(), checkpoint.tensor(name))


def write_layout(folder: Path, model_type: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An unquantised MLX folder, read back."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "mlx"},
    )
    checkpoint = open_checkpoint(folder)
    assert checkpoint.kind == "mlx"
    return {name: checkpoint.tensor(name) for name in checkpoint.names()}


def test_kernels_are_channels_last(tmp_path: Path) -> None:
    kernel = torch.randn(6, 4, 1)
    read = write_layout(tmp_path / "m", "mamba", {"backbone.layers.0.mixer.conv1d.weight": kernel})
    assert torch.equal(read["backbone.layers.0.mixer.conv1d.weight"], kernel.transpose(1, 2))


def test_gpt_oss_experts_are_interleaved(tmp_path: Path) -> None:
    gate, up, down = torch.randn(2, 3, 5), torch.randn(2, 3, 5), torch.randn(2, 5, 3)
    prefix = "model.layers.0.mlp.experts."
    tensors = {f"{prefix}gate_proj.weight": gate, f"{prefix}up_proj.weight": up, f"{prefix}down_proj.weight": down}
    biases = {
        f"{prefix}gate_proj.bias": gate[..., 0],
        f"{prefix}up_proj.bias": up[..., 0],
        f"{prefix}down_proj.bias": down[..., 0],
    }
    read = write_layout(tmp_path / "m", "gpt_oss", {**tensors, **biases})
    assert set(read) == {prefix + name for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")}
    assert torch.equal(read[f"{prefix}gate_up_proj"][..., ::2], gate.transpose(1, 2))
    assert torch.equal(read[f"{prefix}gate_up_proj"][..., 1::2], up.transpose(1, 2))
    assert torch.equal(read[f"{prefix}gate_up_proj_bias"][:, 1::2], up[..., 0])
    assert torch.equal(read[f"{prefix}down_proj"], down.transpose(1, 2))


def test_qwen3_next_norms_lose_the_added_one(tmp_path: Path) -> None:
    norm = torch.randn(8)
    names = ("model.norm.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.linear_attn.norm.weight")
    read = write_layout(tmp_path / "m", "qwen3_next", {name: norm.clone() for name in names})
    assert torch.equal(read[names[0]], norm - 1)
    assert torch.equal(read[names[1]], norm - 1)
    assert torch.equal(read[names[2]], norm)


def test_language_model_of_a_larger_model(tmp_path: Path) -> None:
    tensors = {"language_model.model.norm.weight": torch.ones(4), "language_model.lm_head.weight": torch.zeros(4, 4)}
    assert set(write_layout(tmp_path / "m", "qwen3_vl", tensors)) == {"model.language_model.norm.weight", "lm_head.weight"}


def test_latent_attention_halves_are_joined(tmp_path: Path) -> None:
    keys, values = torch.randn(2, 6, 4), torch.randn(2, 3, 6)  # heads, latent, nope; heads, value, latent
    prefix = "model.layers.0.self_attn."
    read = write_layout(
        tmp_path / "m", "deepseek_v3", {f"{prefix}embed_q.weight": keys, f"{prefix}unembed_out.weight": values}
    )
    joined = read[f"{prefix}kv_b_proj.weight"].view(2, 7, 6)
    assert torch.equal(joined[:, :4], keys.transpose(1, 2))
    assert torch.equal(joined[:, 4:], values)


def test_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    tensors = {"model.layers.0.mlp.experts.gate_proj.weight": torch.ones(2, 3, 5)}
    with pytest.raises(StartupError, match=r"lacks model\.layers\.0\.mlp\.experts\.up_proj\.weight"):
        write_layout(tmp_path / "m", "gpt_oss", tensors)
