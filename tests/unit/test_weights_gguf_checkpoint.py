"""GGUF files as Hugging Face checkpoints: the same tensors, configuration and logits as the folder they were made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights import Checkpoint, open_checkpoint
from mlxcel.runners.weights.gguf.recipes import grouped_qkv, grouped_qkvz, unpermuted, untiled
from mlxcel.testing.gguf_writer import ARCHITECTURES, write_gguf
from mlxcel.testing.tiny_models import write_tiny_checkpoint

# What GGUF has no field for and llama.cpp takes as given.
ASSUMED: dict[str, dict[str, Any]] = {"gemma2": {"query_pre_attn_scalar": 16}, "qwen3_moe": {"norm_topk_prob": True}}
# SHA-256 over the float32 bytes of these tensors of the packaged model, as transformers 5.24 decodes them.
PACKAGED_TENSORS = ("model.embed_tokens.weight", "model.layers.0.", "model.layers.17.", "model.norm.weight")
PACKAGED_DIGEST = "2dfa60f31bb14129ed42dcc826f51d041a079baa8f98749ce2cb85a336bf9ce3"


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny checkpoint folder of a family, written once."""
    root = tmp_path_factory.mktemp("families")

    def write(family: str) -> Path:
        folder = root / family
        return folder if folder.exists() else write_tiny_checkpoint(family, folder, **ASSUMED.get(family, {}))

    return write


def logits_of(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 43).view(1, -1)
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(ids).logits
    return logits


def model_of(checkpoint: Checkpoint, folder: Path) -> Any:
    """A transformers model with the checkpoint's configuration and tensors."""
    AutoConfig.for_model(**checkpoint.config).save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.state_dict_iter(torch.float32)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_float32_file_has_the_same_tensors_and_logits(family: str, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = folder_of(family)
    checkpoint = open_checkpoint(write_gguf(folder, tmp_path / "m.gguf"))
    original = load_file(folder / "model.safetensors")
    assert set(checkpoint.names()) == set(original)
    for name, tensor in original.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        torch.testing.assert_close(checkpoint.tensor(name), tensor, rtol=0, atol=1e-6)  # norms went through + 1 - 1
    expected = logits_of(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    torch.testing.assert_close(logits_of(model_of(checkpoint, tmp_path)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("quantisation", ["Q8_0", "Q4_1", "Q5_0", "MXFP4"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_codes_equal_the_dense_tensor(
    family: str, quantisation: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = folder_of(family)
    checkpoint = open_checkpoint(write_gguf(folder, tmp_path / "m.gguf", quantisation))
    original = load_file(folder / "model.safetensors")
    quantised = 0
    for name in checkpoint.names():
        dense = checkpoint.tensor(name)
        matrix = checkpoint.quantised(name)
        if matrix is not None:
            quantised += 1
            assert torch.equal(matrix.dense(), dense)
            assert float((dense - original[name]).abs().max()) < 0.6 * float(original[name].abs().max())
    assert quantised == sum(tensor.dim() == 2 for tensor in original.values())


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_transformers_reads_the_same_tensors(family: str, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(folder_of(family), tmp_path / "m.gguf", "Q8_0")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.names()) == set(theirs)
    assert all(torch.equal(checkpoint.tensor(name), theirs[name]) for name in theirs)


def test_dtype_argument_and_unknown_names(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(folder_of("llama"), tmp_path / "m.gguf", "Q8_0"))
    name = "model.layers.0.mlp.up_proj.weight"
    assert checkpoint.tensor(name).dtype == torch.float32
    assert checkpoint.tensor(name, torch.bfloat16).dtype == torch.bfloat16
    assert all(tensor.dtype == torch.float16 for _, tensor in checkpoint.state_dict_iter(torch.float16))
    for ask in (checkpoint.tensor, checkpoint.shape, checkpoint.quantised):
        with pytest.raises(KeyError):
            ask("model.layers.9.mlp.up_proj.weight")


def test_description(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(folder_of("qwen3"), tmp_path / "m.gguf", "Q8_0"))
    assert checkpoint.kind == "gguf"
    assert checkpoint.config["head_dim"] == 16
    assert checkpoint.config["eos_token_id"] == 502
    assert checkpoint.generation_config == {"eos_token_id": [502]}
    assert 0 < checkpoint.weights_bytes < (tmp_path / "m.gguf").stat().st_size


def test_fingerprint_follows_the_content(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    path = write_gguf(folder_of("llama"), tmp_path / "m.gguf", "Q8_0")
    other = write_gguf(folder_of("llama"), tmp_path / "other" / "m.gguf", "Q4_1")
    first = open_checkpoint(path).fingerprint
    assert open_checkpoint(path).fingerprint == first
    assert open_checkpoint(other).fingerprint != first
    content = bytearray(path.read_bytes())
    content[-40:] = bytes(40)
    path.write_bytes(content)
    assert open_checkpoint(path).fingerprint != first


def test_closing_keeps_tensors_valid(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(folder_of("llama"), tmp_path / "m.gguf"))
    norm = checkpoint.tensor("model.norm.weight")
    expected = norm.clone()
    checkpoint.close()
    assert torch.equal(norm, expected)


def test_unknown_tensor_is_refused(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(folder_of("llama"), tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_dawn.weight"))
    with pytest.raises(StartupError, match=r"tensor that is not understood: blk\.1\.ffn_dawn\.weight"):
        open_checkpoint(path)


def test_unreadable_format_is_refused(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_gguf(folder_of("llama"), tmp_path / "m.gguf")
    name = b"output_norm.weight"
    content = bytearray(path.read_bytes())
    kind_at = content.index(name) + len(name) + 4 + 8  # after the count of dimensions and the one dimension
    content[kind_at] = GGMLQuantizationType.I32
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"output_norm\.weight is of type I32, which is not supported"):
        open_checkpoint(path)


def test_row_orders_are_permutations() -> None:
    orders = [unpermuted(8)(32), grouped_qkv(6, 2)(80), grouped_qkvz(2, 8, 16)(48), untiled(2, 4, 8)(24)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(len(order)))
    assert unpermuted(4)(8).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    # Two groups of one query head, a key and a value, each of two rows.
    assert grouped_qkv(2, 2)(12).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]


@pytest.mark.model
def test_packaged_model(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    digest = hashlib.sha256()
    for name in sorted(checkpoint.names()):
        matrix = checkpoint.quantised(name)
        assert (matrix is None) == name.endswith("norm.weight")
        if name.startswith(PACKAGED_TENSORS):
            tensor = checkpoint.tensor(name)
            assert matrix is None or torch.equal(matrix.dense(), tensor)
            digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest() == PACKAGED_DIGEST
    config = AutoConfig.for_model(**checkpoint.config)
    assert (config.num_hidden_layers, config.head_dim, config.rms_norm_eps) == (30, 64, 1e-5)
    assert config.rope_parameters == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config.tie_word_embeddings
