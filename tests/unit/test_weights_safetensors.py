"""Folders in Hugging Face layout: plain, sharded, FP8 and MXFP4, and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights import open_checkpoint
from mlxcel.testing.tiny_models import write_tiny_checkpoint


def write_folder(folder: Path, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def write_shards(folder: Path) -> dict[str, torch.Tensor]:
    """Two shards with an index."""
    tensors = {f"t{number}": torch.full((3, 4), float(number)) for number in range(4)}
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    weight_map: dict[str, str] = {}
    for shard in (1, 2):
        name = f"model-0000{shard}-of-00002.safetensors"
        part = {key: tensors[key] for key in list(tensors)[2 * shard - 2 : 2 * shard]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


def refusal(path: Path) -> str:
    with pytest.raises(StartupError) as caught:
        open_checkpoint(path)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_plain_folder(dtype: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("qwen2", tmp_path / "m", dtype=dtype)
    original = load_file(folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.kind == "safetensors"
    assert set(checkpoint.names()) == set(original)
    for name, tensor in original.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.tensor(name).dtype == getattr(torch, dtype)
        assert torch.equal(checkpoint.tensor(name), tensor)
        assert checkpoint.quantised(name) is None
    assert checkpoint.config["model_type"] == "qwen2"
    assert AutoConfig.for_model(**checkpoint.config).hidden_size == 64
    assert checkpoint.generation_config["eos_token_id"] == [502, 500]
    assert checkpoint.weights_bytes == (folder / "model.safetensors").stat().st_size


def test_tensors_are_views_and_outlive_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, {"a": torch.arange(8.0)}))
    first, second = checkpoint.tensor("a"), checkpoint.tensor("a")
    assert first.data_ptr() == second.data_ptr()
    checkpoint.close()
    assert torch.equal(first, torch.arange(8.0))


def test_unknown_names(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, {"a": torch.arange(8.0)}))
    for ask in (checkpoint.tensor, checkpoint.shape, checkpoint.quantised):
        with pytest.raises(KeyError):
            ask("b")


def test_shards(tmp_path: Path) -> None:
    tensors = write_shards(tmp_path / "m")
    read = dict(open_checkpoint(tmp_path / "m").state_dict_iter())
    assert set(read) == set(tensors)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_fingerprint_follows_weights_and_configuration(tmp_path: Path) -> None:
    digests = [
        open_checkpoint(write_folder(tmp_path / "a", {"a": torch.zeros(8)})).fingerprint,
        open_checkpoint(write_folder(tmp_path / "b", {"a": torch.ones(8)})).fingerprint,
        open_checkpoint(write_folder(tmp_path / "c", {"a": torch.zeros(8)}, rms_norm_eps=1.0)).fingerprint,
    ]
    assert len(set(digests)) == 3
    assert open_checkpoint(write_folder(tmp_path / "d", {"a": torch.zeros(8)})).fingerprint == digests[0]


def test_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path / "m")
    (tmp_path / "m" / "model-00002-of-00002.safetensors").unlink()
    assert "lacks 1 of 2 weight files, first model-00002-of-00002.safetensors" in refusal(tmp_path / "m")


def test_tensor_that_only_the_index_has(tmp_path: Path) -> None:
    write_shards(tmp_path / "m")
    index = tmp_path / "m" / "model.safetensors.index.json"
    contents = json.loads(index.read_text())
    contents["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(contents))
    assert "1 tensors that its index lists, first ghost" in refusal(tmp_path / "m")


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_bad_index(tmp_path: Path, content: str) -> None:
    write_shards(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in refusal(tmp_path / "m")


def test_index_may_not_leave_the_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "secret", {"a": torch.ones(2)})
    folder = write_folder(tmp_path / "m", {"a": torch.ones(2)})
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret/model.safetensors"}}')
    assert "outside its folder" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 5, 20, -1])
def test_truncated_weights(tmp_path: Path, keep: int) -> None:
    folder = write_folder(tmp_path, {"a": torch.arange(64.0)})
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:keep])
    assert "damaged or truncated" in refusal(folder)


def test_git_lfs_pointer(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a": torch.ones(2)})
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in refusal(folder)


def test_consolidated_copy_is_ignored(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a": torch.ones(2)})
    save_file({"b": torch.ones(2)}, folder / "consolidated.safetensors")
    assert open_checkpoint(folder).names() == ["a"]


def test_foreign_and_missing_paths(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing")
    assert "holds no model" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert "pickle" in refusal(tmp_path)
    assert "pickle" in refusal(tmp_path / "pytorch_model.bin")
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a readable GGUF file" in refusal(tmp_path / "notes.txt")


def test_adapter_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({"a": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    assert "LoRA adapter" in refusal(tmp_path)


def test_configuration_without_a_model_type(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a": torch.ones(2)})
    (folder / "config.json").write_text("{}")
    assert "model_type" in refusal(folder)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors"])
def test_other_quantisation_is_named(tmp_path: Path, method: str) -> None:
    settings = {"quant_method": method, "bits": 4}
    assert f"quantised with {method}" in refusal(
        write_folder(tmp_path / "a", {"a": torch.ones(2)}, quantization_config=settings)
    )
    nested = write_folder(tmp_path / "b", {"a": torch.ones(2)}, text_config={"quantization_config": settings})
    assert f"quantised with {method}" in refusal(nested)


@pytest.mark.parametrize("shape", [(128, 256), (200, 300)])
def test_fp8_blocks(tmp_path: Path, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128)) + 0.5
    folder = write_folder(
        tmp_path,
        {
            "a.weight": weight,
            "a.weight_scale_inv": scales,
            "a.activation_scale": torch.ones(1),
            "norm.weight": torch.ones(4),
        },
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.names()) == {"a.weight", "norm.weight"}
    assert "quantization_config" not in checkpoint.config
    dense = checkpoint.tensor("a.weight")
    rows, columns = torch.arange(shape[0]) // 128, torch.arange(shape[1]) // 128
    assert torch.equal(dense, weight.float() * scales[rows][:, columns])
    assert checkpoint.shape("a.weight") == shape
    assert checkpoint.tensor("a.weight", torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("scales", [torch.tensor(0.5), torch.tensor([[0.5]]), torch.tensor([[0.5], [2.0], [4.0], [8.0]])])
def test_fp8_scales_without_blocks(tmp_path: Path, scales: torch.Tensor) -> None:
    weight = torch.randn(4, 6).to(torch.float8_e4m3fn)
    tensors = {"a.weight": weight, "a.weight_scale_inv": scales}
    folder = write_folder(tmp_path, tensors, quantization_config={"quant_method": "fp8"})
    assert torch.equal(open_checkpoint(folder).tensor("a.weight"), weight.float() * scales)


def test_mxfp4_experts_equal_transformers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(118, 132, (2, 6, 3), dtype=torch.uint8, generator=generator)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    folder = write_folder(
        tmp_path, {f"{name}_blocks": blocks, f"{name}_scales": scales}, quantization_config={"quant_method": "mxfp4"}
    )
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == [name]
    assert checkpoint.shape(name) == (2, 96, 6)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(checkpoint.tensor(name), expected)
