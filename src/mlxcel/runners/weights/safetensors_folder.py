"""A folder in Hugging Face or MLX layout: ``config.json`` and one or more safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.folder import read_json, weight_files, weight_map_of
from mlxcel.runners.weights.checkpoint import Checkpoint
from mlxcel.runners.weights.entries import Entry, PlainEntry
from mlxcel.runners.weights.fingerprint import fingerprint_of
from mlxcel.runners.weights.float8 import Fp8Entry, Mxfp4Entry
from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.mlx_layout import mlx_entries
from mlxcel.runners.weights.tensor_files import TensorFiles, missing_names

_HEADER_BYTES = 1 << 20
_FP8_SCALE = "_scale_inv"


class SafetensorsCheckpoint(Checkpoint):
    """bf16, fp16 or fp32 tensors, MLX quantisation, fine-grained FP8, or MXFP4 experts.

    Raises:
        StartupError: a file is missing or damaged, or the quantisation method is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(path / "config.json")
        if "model_type" not in config:
            raise StartupError(f"{path / 'config.json'} does not name a model_type")
        self.generation_config = read_json(path / "generation_config.json")
        paths = weight_files(path)
        self._files = TensorFiles(paths)
        if lost := missing_names(self._files, weight_map_of(path)):
            raise StartupError(f"{path} lacks {len(lost)} tensors that its index lists, first {lost[0]}; download it again")
        quantisation = _quantisation(path, config)
        is_mlx = quantisation.get("method") == "mlx" or self._files.format == "mlx"
        self.kind = "mlx" if is_mlx else "safetensors"
        self._entries = mlx_entries(self._files, config, quantisation) if is_mlx else _entries(self._files, quantisation)
        self.config = _without_quantisation(config)
        self.weights_bytes = sum(file.stat().st_size for file in paths)
        self.fingerprint = fingerprint_of([path / "config.json", *paths], _HEADER_BYTES)

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape()

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = self._entries[name].dense()
        return tensor if dtype is None else tensor.to(dtype)

    def quantised(self, name: str) -> QuantisedMatrix | None:
        return self._entries[name].quantised()

    def close(self) -> None:
        self._files.close()
        self._entries = {}


def _quantisation(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The quantisation settings, with their ``method`` ("mlx", "fp8", "mxfp4"); empty for plain tensors."""
    sections = [config, config.get("text_config") or {}]
    for section in sections:
        settings = section.get("quantization") or section.get("quantization_config")
        if not settings:
            continue
        method = settings.get("quant_method", "mlx" if "group_size" in settings or "mode" in settings else None)
        if method not in ("mlx", "fp8", "mxfp4"):
            raise StartupError(
                f"{path} is quantised with {method}, which is not supported; use a GGUF, MLX or plain version"
            )
        return {**settings, "method": method}
    return {}


def _without_quantisation(config: Mapping[str, Any]) -> dict[str, Any]:
    cleaned = {key: value for key, value in config.items() if key not in ("quantization", "quantization_config")}
    if isinstance(cleaned.get("text_config"), dict):
        cleaned["text_config"] = _without_quantisation(cleaned["text_config"])
    return cleaned


def _entries(files: TensorFiles, quantisation: Mapping[str, Any]) -> dict[str, Entry]:
    block = quantisation.get("weight_block_size")
    entries: dict[str, Entry] = {}
    for name in files.names():
        if quantisation.get("method") == "fp8" and f"{name}{_FP8_SCALE}" in files:
            entries[name] = Fp8Entry(files, name, f"{name}{_FP8_SCALE}", tuple(block) if block else None)
        elif quantisation.get("method") == "mxfp4" and name.endswith("_blocks"):
            entries[name.removesuffix("_blocks")] = Mxfp4Entry(files, name.removesuffix("_blocks"))
        elif not _belongs_to_another(files, name):
            entries[name] = PlainEntry(files, name)
    return entries


def _belongs_to_another(files: TensorFiles, name: str) -> bool:
    """Scales, which are read with the tensor they scale, and activation scales, which dense weights have no use for."""
    if name.endswith(_FP8_SCALE) and name.removesuffix(_FP8_SCALE) in files:
        return True
    if name.endswith("_scales") and f"{name.removesuffix('_scales')}_blocks" in files:
        return True
    return name.endswith((".activation_scale", ".input_scale"))
