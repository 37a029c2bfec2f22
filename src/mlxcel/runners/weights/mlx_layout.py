"""Undoes what MLX converters do to a checkpoint's names and shapes, so that it reads as the Hugging Face one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights import combine
from mlxcel.runners.weights.affine import MlxEntry, mlx_entry
from mlxcel.runners.weights.entries import CombinedEntry, Entry, PlainEntry
from mlxcel.runners.weights.tensor_files import TensorFiles

_STACK = re.compile(
    r"(?P<parent>.+)\.(switch_mlp|switch_glu|experts)\.(?P<role>gate_proj|up_proj|down_proj|fc1|fc2)\.(?P<suffix>\w+)"
)
_DENSE = re.compile(r"(?P<parent>.+\.feed_forward)\.(?P<role>gate_proj|up_proj|down_proj)\.(?P<suffix>\w+)")
_NUMBERED = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # Mixtral's names of the three projections
_NAMED = {"fc1": "up_proj", "fc2": "down_proj"}
_ADDED_ONE = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
_Merge = tuple[tuple[str, ...], combine.Combine]
# target -> sources and how they combine, all inside one module; by model type.
_LATENT_KV: Mapping[str, _Merge] = {
    "kv_b_proj.weight": (("embed_q.weight", "unembed_out.weight"), combine.latent_kv),
}
_MERGES: Mapping[str, Mapping[str, _Merge]] = {
    "gpt_oss": {
        "experts.gate_up_proj": (("experts.gate_proj.weight", "experts.up_proj.weight"), combine.interleaved_columns),
        "experts.gate_up_proj_bias": (("experts.gate_proj.bias", "experts.up_proj.bias"), combine.interleaved_rows),
        "experts.down_proj": (("experts.down_proj.weight",), combine.transposed),
        "experts.down_proj_bias": (("experts.down_proj.bias",), combine.first),
    },
    "llama4_text": {
        "experts.gate_up_proj": (("experts.gate_proj.weight", "experts.up_proj.weight"), combine.stacked_columns),
        "experts.down_proj": (("experts.down_proj.weight",), combine.transposed),
    },
    "granitemoe": {
        "input_linear.weight": (("switch_mlp.gate_proj.weight", "switch_mlp.up_proj.weight"), combine.stacked_rows),
        "output_linear.weight": (("switch_mlp.down_proj.weight",), combine.first),
    },
    "gemma4_text": {
        "experts.gate_up_proj": (
            ("experts.switch_glu.gate_proj.weight", "experts.switch_glu.up_proj.weight"),
            combine.stacked_rows,
        ),
        "experts.down_proj": (("experts.switch_glu.down_proj.weight",), combine.first),
    },
}
_SAME_MERGES = {
    "granitemoehybrid": "granitemoe",
    "granitemoeshared": "granitemoe",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
}


def mlx_entries(files: TensorFiles, config: Mapping[str, Any], quantisation: Mapping[str, Any]) -> dict[str, Entry]:
    """Every tensor of an MLX checkpoint under its Hugging Face name.

    Args:
        config: the model's configuration.
        quantisation: its ``quantization`` section.

    Raises:
        StartupError: a tensor's shapes fit no known width, or a part of it is missing.
    """
    model_type = str(config.get("model_type"))
    merges = {**_LATENT_KV, **_MERGES.get(_SAME_MERGES.get(model_type, model_type), {})}
    stored = dict(_stored(files, quantisation))
    entries: dict[str, Entry] = {}
    merged = {source for sources, _ in merges.values() for source in sources}
    for name, entry in stored.items():
        if not any(name.endswith(f".{source}") for source in merged):
            entries |= _translated(name, entry, numbered=model_type == "lfm2_moe")
    for target, (sources, how) in merges.items():
        for name in [name for name in stored if name.endswith(f".{sources[0]}")]:
            module = name.removesuffix(sources[0])
            if lost := [module + source for source in sources if module + source not in stored]:
                raise StartupError(f"the checkpoint lacks {lost[0]}; download it again")
            entries[module + target] = CombinedEntry(tuple(stored[module + source] for source in sources), how)
    if model_type.startswith(("qwen3_next", "qwen3_5")):
        entries = {name: _without_one(name, entry) for name, entry in entries.items()}
    return {_renamed(name): entry for name, entry in entries.items()}


def _renamed(name: str) -> str:
    """The language part of a model that also sees: MLX and Hugging Face nest its names the other way round."""
    if name.startswith("language_model.model."):
        return "model.language_model." + name.removeprefix("language_model.model.")
    return name.removeprefix("language_model.")


def _stored(files: TensorFiles, quantisation: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
    for name in files.names():
        module, _, part = name.rpartition(".")
        if f"{module}.scales" not in files or part not in ("weight", "scales", "biases"):
            yield name, PlainEntry(files, name)
        elif part == "weight":
            yield name, mlx_entry(files, module, quantisation)


def _translated(name: str, entry: Entry, *, numbered: bool) -> dict[str, Entry]:
    """One stored tensor as one or, for a stack of experts, several."""
    stack = _STACK.fullmatch(name)
    if stack and isinstance(entry, MlxEntry | PlainEntry):
        parent, role, suffix = stack["parent"], stack["role"], stack["suffix"]
        has_numbers = numbered or parent.endswith("block_sparse_moe")
        projection = _NUMBERED[role] if has_numbers else _NAMED.get(role, role)
        experts = range(entry.shape()[0])
        return {f"{parent}.experts.{e}.{projection}.{suffix}": replace(entry, index=e) for e in experts}
    if numbered and (dense := _DENSE.fullmatch(name)):
        return {f"{dense['parent']}.{_NUMBERED[dense['role']]}.{dense['suffix']}": entry}
    if _is_channels_last(name, entry):
        return {name: CombinedEntry((entry,), combine.transposed)}
    return {name: entry}


def _is_channels_last(name: str, entry: Entry) -> bool:
    """Depthwise kernels are [channels, taps, 1] in MLX and [channels, 1, taps] elsewhere."""
    return name.endswith(("conv1d.weight", "conv.conv.weight")) and entry.shape()[-1] == 1


def _without_one(name: str, entry: Entry) -> Entry:
    """MLX adds the 1 of ``1 + weight`` to these models' norms."""
    return CombinedEntry((entry,), combine.unshifted) if name.endswith(_ADDED_ONE) else entry
