"""Writes a Hugging Face checkpoint folder as a GGUF file, the way llama.cpp's converter does, for tests.

Names come from the ``gguf`` package's own tables, so what reads these files is checked against something it does not share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants
from safetensors.torch import load_file

# Hugging Face model type -> GGUF architecture.
ARCHITECTURES: Final[Mapping[str, str]] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "olmo2": "olmo2",
}
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # tokenizer.ggml.token_type
_NUMBERS: Final[Mapping[str, str]] = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "head_count",
    "num_key_value_heads": "head_count_kv",
    "rms_norm_eps": "layer_norm_rms_eps",
    "head_dim": "key_length",
    "sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


def write_gguf(folder: Path, target: Path, quantisation: str = "F32") -> Path:
    """Convert ``folder`` and return ``target``.

    Args:
        folder: ``config.json``, ``model.safetensors`` and, if the file shall have a vocabulary, ``tokenizer.json``.
        target: the file to write.
        quantisation: GGML type of the matrices, such as "Q8_0"; rows that it cannot hold, and all vectors, stay float32.

    Raises:
        KeyError: the model type is not one of ``ARCHITECTURES``, or a tensor has no GGUF name.
    """
    config = json.loads((folder / "config.json").read_text())
    writer: Any = GGUFWriter(target, ARCHITECTURES[config["model_type"]])
    _write_config(writer, config)
    if (folder / "tokenizer.json").exists():
        _write_vocabulary(writer, folder, config)
    kind = GGMLQuantizationType[quantisation]
    for name, tensor in _gguf_tensors(load_file(folder / "model.safetensors"), config):
        _write_tensor(writer, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _write_config(writer: Any, config: Mapping[str, Any]) -> None:
    for field, name in _NUMBERS.items():
        if config.get(field) is not None:
            getattr(writer, f"add_{name}")(config[field])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if rope.get("rope_type") == "yarn":
        writer.add_string(f"{writer.arch}.rope.scaling.type", "yarn")
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _write_vocabulary(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = dict(tokenizer["model"]["vocab"])
    kinds = dict.fromkeys(vocabulary, _NORMAL)
    for token in tokenizer["added_tokens"]:
        vocabulary[token["content"]] = token["id"]
        kinds[token["content"]] = _CONTROL if token["special"] else _USER_DEFINED
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[token] for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_add_bos_token(False)
    for field in ("bos", "eos", "pad"):
        token_id = config.get(f"{field}_token_id")
        if isinstance(token_id, int):
            getattr(writer, f"add_{field}_token_id")(token_id)
    settings_path = folder / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text()) if settings_path.exists() else {}
    if isinstance(settings.get("chat_template"), str):
        writer.add_chat_template(settings["chat_template"])


def _gguf_tensors(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    architecture = next(arch for arch in MODEL_ARCH if MODEL_ARCH_NAMES[arch] == ARCHITECTURES[config["model_type"]])
    names = get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in _with_stacked_experts(tensors).items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise KeyError(f"{name} has no GGUF name")
        yield gguf_name, _converted(name, tensor, config)


def _with_stacked_experts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stacked = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in tensors:
        if ".experts.0." in name:
            module, projection = name.split(".experts.0.")
            count = sum(1 for other in tensors if other.startswith(f"{module}.experts.") and other.endswith(projection))
            parts = [tensors[f"{module}.experts.{expert}.{projection}"] for expert in range(count)]
            stacked[f"{module}.experts.{projection}"] = torch.stack(parts)
    return stacked


def _converted(name: str, tensor: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    tensor = tensor.to(torch.float32)
    if config["model_type"] == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads"] if ".q_proj." in name else config["num_key_value_heads"]
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)
    if config["model_type"] == "gemma2" and name.endswith("norm.weight"):
        return tensor + 1.0
    return tensor


def _write_tensor(writer: Any, name: str, tensor: torch.Tensor, kind: GGMLQuantizationType) -> None:
    data: npt.NDArray[np.float32] = tensor.contiguous().numpy()
    if tensor.dim() > 1 and kind != GGMLQuantizationType.F32:
        try:
            writer.add_tensor(name, quants.quantize(data, kind), raw_dtype=kind)
        except quants.QuantError:  # the rows are no multiple of the block
            writer.add_tensor(name, data)
    else:
        writer.add_tensor(name, data)
