"""Every checkpoint format runs on every path, and memory is estimated before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mlxcel.core.ports import ModelRunner
from mlxcel.runners.generate.batch import RaggedBatch
from mlxcel.runners.generate.build import build_runner, native_spec
from mlxcel.runners.generate.decoder.spec import DecoderSpec
from mlxcel.runners.generate.decoder.torch_decoder import TorchDecoder
from mlxcel.runners.generate.estimate import estimate_memory
from mlxcel.runners.generate.options import RunnerOptions
from mlxcel.runners.generate.providers import DecoderRequest, TorchProvider
from mlxcel.runners.generate.runner import PagedRunner
from mlxcel.runners.weights import Checkpoint, open_checkpoint
from mlxcel.testing.gguf_writer import ARCHITECTURES, write_gguf
from mlxcel.testing.row_driver import RowDriver
from mlxcel.testing.tiny_models import write_tiny_checkpoint

PROMPTS = [list(range(20, 31)), list(range(200, 170, -1)), [7, 300, 9]]
OPTIONS = RunnerOptions(dtype="fp32", max_rows=4, kv_block_count=32)
THROUGH_TRANSFORMERS = RunnerOptions(dtype="fp32", max_rows=4, kv_block_count=32, backend="transformers")


def tokens(source: Path | Checkpoint, options: RunnerOptions = OPTIONS, count: int = 12) -> list[list[int]]:
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    return RowDriver(build_runner(checkpoint, options, [TorchProvider()])).generate(PROMPTS, count, chunk_tokens=8)


def path_of(runner: ModelRunner) -> str:
    assert isinstance(runner, PagedRunner)
    return runner.choice.path


def own_tokens(folder: Path, count: int = 12) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings: dict[str, Any] = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [model.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist() for ids in PROMPTS]


# What GGUF does not record and its readers take from the published models.
UNSTATED: dict[str, dict[str, Any]] = {"gemma2": {"query_pre_attn_scalar": 16}, "qwen3_moe": {"norm_topk_prob": True}}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_gguf_gives_the_tokens_of_the_folder_it_was_made_of(family: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(family, tmp_path / "hf", **UNSTATED.get(family, {}))
    assert tokens(write_gguf(folder, tmp_path / "m.gguf")) == own_tokens(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("quantisation", ["Q4_0", "Q4_1", "Q8_0"])
def test_native_and_transformers_read_the_same_quantised_weights(family: str, quantisation: str, tmp_path: Path) -> None:
    source = write_gguf(write_tiny_checkpoint(family, tmp_path / "hf"), tmp_path / "m.gguf", quantisation)
    assert tokens(source) == tokens(source, THROUGH_TRANSFORMERS)


def write_mlx(folder: Path, target: Path, group: int = 32) -> Path:
    """4-bit affine quantisation of every matrix, in MLX's layout; experts stacked."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in _stacked(load_file(folder / "model.safetensors")).items():
        if tensor.dim() < 2 or tensor.shape[-1] % group:
            tensors[name] = tensor
            continue
        module = name.removesuffix(".weight")
        grouped = tensor.view(*tensor.shape[:-1], -1, group)
        low, high = grouped.amin(-1), grouped.amax(-1)
        scales = ((high - low) / 15).clamp_min(1e-6)
        codes = ((grouped - low[..., None]) / scales[..., None]).round().to(torch.int64)
        words = codes.view(*tensor.shape[:-1], -1, 8) << torch.arange(0, 32, 4)
        tensors |= {
            f"{module}.weight": words.sum(-1).to(torch.uint32),
            f"{module}.scales": scales,
            f"{module}.biases": low.contiguous(),
        }
    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization": {"group_size": group, "bits": 4}}))
    save_file(tensors, target / "model.safetensors", {"format": "mlx"})
    return target


def _stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    result = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in tensors:
        if ".experts.0." in name:
            module, projection = name.split(".experts.0.")
            parts = [tensors[f"{module}.experts.{expert}.{projection}"] for expert in range(4)]
            result[f"{module}.switch_mlp.{projection}"] = torch.stack(parts)
    return result


def decoded_folder(source: Path, target: Path) -> Path:
    """A plain folder with what a checkpoint's decoded weights are."""
    checkpoint = open_checkpoint(source)
    target.mkdir()
    (target / "config.json").write_text(json.dumps(checkpoint.config))
    weights = {name: tensor.contiguous() for name, tensor in checkpoint.state_dict_iter(torch.float32)}
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize(("family", "path"), [("qwen2", "torch"), ("qwen3_moe", "transformers"), ("gemma2", "transformers")])
def test_mlx_weights_run_as_their_decoded_values(family: str, path: str, tmp_path: Path) -> None:
    source = write_mlx(write_tiny_checkpoint(family, tmp_path / "hf"), tmp_path / "mlx")
    assert path_of(build_runner(open_checkpoint(source), OPTIONS, [TorchProvider()])) == path
    assert tokens(source) == own_tokens(decoded_folder(source, tmp_path / "plain"))


def test_fp8_weights_run_without_the_hardware_for_them(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma2", tmp_path / "hf")
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        scale = tensors[name].abs().max() / 448
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scale.reshape(1, 1)
    config = json.loads((folder / "config.json").read_text())
    section = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert tokens(folder) == own_tokens(decoded_folder(folder, tmp_path / "plain"))


def first_logits(source: Path, dtype: torch.dtype) -> torch.Tensor:
    """Logits after each token of a prompt."""
    checkpoint = open_checkpoint(source)
    spec = native_spec(checkpoint, OPTIONS)
    assert isinstance(spec, DecoderSpec)
    decoder = TorchProvider().offer(DecoderRequest(spec, checkpoint, OPTIONS, torch.device("cpu"), dtype, 64))
    assert isinstance(decoder, TorchDecoder)
    ids = torch.tensor(PROMPTS[0], dtype=torch.int32)
    count = len(ids)
    positions = torch.arange(count, dtype=torch.int32)
    return decoder.forward(
        RaggedBatch(
            token_ids=ids,
            positions=positions,
            row_starts=torch.tensor([0, count], dtype=torch.int32),
            context_lens=torch.tensor([count], dtype=torch.int32),
            block_tables=torch.tensor([[3]], dtype=torch.int32),
            logit_indices=positions,
        )
    )


def test_packed_weights_stay_close_to_exact_arithmetic(tmp_path: Path) -> None:
    source = write_mlx(write_tiny_checkpoint("llama", tmp_path / "hf"), tmp_path / "mlx")
    exact, packed = first_logits(source, torch.float32), first_logits(source, torch.bfloat16)
    assert packed.dtype == torch.float32
    assert float(((packed - exact).norm(dim=-1) / exact.norm(dim=-1)).max()) < 0.1


def test_a_checkpoint_that_lacks_a_tensor_is_not_native(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("llama", tmp_path)
    checkpoint = open_checkpoint(folder)
    lost = "model.layers.0.mlp.gate_proj.weight"
    assert isinstance(native_spec(checkpoint, OPTIONS), DecoderSpec)
    weights = load_file(folder / "model.safetensors")
    weights[lost.replace("gate_proj", "gate_projection")] = weights.pop(lost)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    declined = native_spec(open_checkpoint(folder), OPTIONS)
    assert not isinstance(declined, DecoderSpec)
    assert declined.reason == f"the checkpoint has no tensor {lost}"


class TestEstimate:
    def test_parts_are_those_of_the_loaded_model(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write_tiny_checkpoint("llama", tmp_path))
        options = RunnerOptions(dtype="fp32", max_rows=2)
        estimate = estimate_memory(checkpoint, options, limit_bytes=1 << 30)
        info = build_runner(checkpoint, options, [TorchProvider()]).info
        weights = load_file(tmp_path / "model.safetensors")
        assert estimate.weights_bytes == sum(tensor.numel() * 4 for tensor in weights.values())
        assert estimate.kv_bytes_total == info.block_count * info.block_tokens * info.bytes_per_token
        assert estimate.activation_bytes > 0
        parts = estimate.weights_bytes + estimate.kv_bytes_total + estimate.activation_bytes
        assert estimate.headroom_bytes == pytest.approx(0.2 * parts, abs=2)
        assert estimate.total_bytes == parts + estimate.headroom_bytes
        assert estimate.budget_bytes == 1 << 30

    @pytest.mark.parametrize("family", ["gemma2", "deepseek_v3", "gpt2", "lfm2", "mamba2"])
    def test_kv_of_other_families_is_what_their_runner_needs(self, family: str, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write_tiny_checkpoint(family, tmp_path))
        options = RunnerOptions(dtype="fp32", kv_block_count=10)
        info = build_runner(checkpoint, options).info
        assert estimate_memory(checkpoint, options).kv_bytes_total == 10 * 16 * info.bytes_per_token

    def test_sixteen_bits_halve_weights_and_kv(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write_tiny_checkpoint("olmo2", tmp_path))
        wide, narrow = (estimate_memory(checkpoint, RunnerOptions(dtype=dtype)) for dtype in ("fp32", "bf16"))
        assert wide.weights_bytes == 2 * narrow.weights_bytes
        assert wide.kv_bytes_total == 2 * narrow.kv_bytes_total

    def test_headroom_never_shrinks_the_total(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write_tiny_checkpoint("llama", tmp_path))
        assert estimate_memory(checkpoint, OPTIONS, headroom_factor=0.5).headroom_bytes == 0

    def test_the_budget_is_what_is_free_unless_given(self, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(write_tiny_checkpoint("llama", tmp_path))
        assert estimate_memory(checkpoint, OPTIONS).budget_bytes > 1 << 20
