"""Reads LoRA adapters as PEFT writes them (``adapter_config.json`` beside ``adapter_model.safetensors``).

An adapter adds ``scale * B @ A`` to matrices of the model (Hu et al. 2021, arXiv:2106.09685), where ``scale`` is
``alpha / rank``, or ``alpha / sqrt(rank)`` for rank-stabilised ones (Kalajdzievski 2023, arXiv:2312.03732).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.fingerprint import fingerprint_of
from mlxcel.runners.weights.tensor_files import TensorFiles

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_HEADER_BYTES = 65_536
_SHOWN_NAMES = 5
_PREFIX = "base_model.model."
_ENDINGS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_A.default.weight": "a",
    ".lora_B.default.weight": "b",
}


@dataclass(frozen=True, slots=True)
class LowRank:
    """The update ``b @ a`` of one matrix: ``a`` [rank, in] and ``b`` [out, rank], the adapter's own scale multiplied in."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter by the names of the matrices it changes (without ``.weight``).

    Attributes:
        fingerprint: hex digest that changes with the weights.
    """

    path: Path
    updates: Mapping[str, LowRank]
    fingerprint: str


def open_adapters(paths: Sequence[Path]) -> tuple[Adapter, ...]:
    """Read adapters in order.

    Raises:
        StartupError: one cannot be read, is of a kind that is not served, or has tensors of unknown meaning (named).
    """
    return tuple(_open(path) for path in paths)


def adapter_fingerprints(paths: Sequence[Path]) -> tuple[str, ...]:
    """Digests of adapters without reading their weights whole."""
    return tuple(_fingerprint(_weights_file(path)) for path in paths)


def _open(path: Path) -> Adapter:
    file = _weights_file(path)
    config = _config(file.parent / _CONFIG)
    files = TensorFiles([file])
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    unknown: list[str] = []
    for name in files.names():
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), None)
        if ending is None:
            unknown.append(name)
            continue
        module = name.removeprefix(_PREFIX).removesuffix(ending)
        pairs.setdefault(module, {})[_ENDINGS[ending]] = files.tensor(name).float()
    unknown += [f"{module} (A or B is missing)" for module, pair in pairs.items() if len(pair) < 2]
    if unknown:
        raise StartupError(f"--lora: {path} has tensors that are not a LoRA update: {shown(unknown)}")
    if not pairs:
        raise StartupError(f"--lora: {path} holds no LoRA update")
    updates = {module: _update(path, module, pair["a"], pair["b"], config) for module, pair in pairs.items()}
    return Adapter(path, updates, _fingerprint(file))


def shown(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(sorted(names)[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _fingerprint(file: Path) -> str:
    return fingerprint_of([file], _HEADER_BYTES)


def _weights_file(path: Path) -> Path:
    if path.suffix.lower() == ".gguf":
        raise StartupError(f"--lora: {path} is a GGUF adapter; give the PEFT folder it was made from")
    file = path / _WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise StartupError(f"--lora: {file} does not exist; give a PEFT adapter's folder or its {_WEIGHTS}")
    return file


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise StartupError(f"--lora: cannot read {file}, which says how the adapter is scaled") from None
    if not isinstance(config, dict):
        raise StartupError(f"--lora: {file} is not a JSON object")
    if str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise StartupError(f"--lora: {file.parent} is a {config['peft_type']} adapter; only LoRA is served")
    refused = {"use_dora": "DoRA", "use_qalora": "QA-LoRA", "alora_invocation_tokens": "activated LoRA"}
    for field, kind in refused.items():
        if config.get(field):
            raise StartupError(f"--lora: {file.parent} uses {kind} ({field}), which is not served")
    for field in ("layer_replication", "modules_to_save", "target_parameters"):
        if config.get(field):
            raise StartupError(f"--lora: {file.parent} sets {field}, which changes more of the model than LoRA does")
    return config


def _update(path: Path, module: str, a: torch.Tensor, b: torch.Tensor, config: Mapping[str, Any]) -> LowRank:
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        raise StartupError(f"--lora: {path}: A {tuple(a.shape)} and B {tuple(b.shape)} of {module} do not fit together")
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise StartupError(f"--lora: {path}: {module} holds values that are not finite")
    rank = a.shape[0]
    alpha = _alpha(module, config, rank)
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    if not math.isfinite(scale):
        raise StartupError(f"--lora: {path}: the scale {scale} of {module} is not finite; check lora_alpha")
    return LowRank(a, b * scale)


def _alpha(module: str, config: Mapping[str, Any], rank: int) -> float:
    """``lora_alpha``, or the exception that ``alpha_pattern`` makes for a module by the end of its name."""
    patterns = config.get("alpha_pattern") or {}
    value = config.get("lora_alpha", rank)
    if isinstance(patterns, dict):
        value = next((alpha for end, alpha in patterns.items() if module == end or module.endswith("." + end)), value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise StartupError(f"--lora: lora_alpha of {module} is not a number")
    return float(value)
