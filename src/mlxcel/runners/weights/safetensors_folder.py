"""A folder in Hugging Face layout: ``config.json`` and one or more safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.checkpoint import Checkpoint
from mlxcel.runners.weights.fingerprint import fingerprint_of
from mlxcel.runners.weights.matrix import QuantisedMatrix

INDEX_NAME = "model.safetensors.index.json"
_HEADER_BYTES = 1 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty when the file is missing. Raises StartupError when it is not a JSON object."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise StartupError(f"{path} must hold a JSON object")
    return value


def shard_files(folder: Path) -> list[Path]:
    """The weight files, from the index when there is one. Raises StartupError naming a missing shard."""
    index = read_json(folder / INDEX_NAME)
    if not index:
        return sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StartupError(f"{folder / INDEX_NAME} has no weight_map")
    files = [folder / name for name in sorted(set(weight_map.values()))]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise StartupError(
            f"{folder} lacks {len(missing)} of {len(files)} weight files, first {missing[0]}; download the model again"
        )
    return files


class SafetensorsCheckpoint(Checkpoint):
    """Plain (bf16, fp16, fp32) safetensors."""

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / "config.json")
        self.generation_config = read_json(path / "generation_config.json")
        files = shard_files(path)
        self._shards: dict[str, Any] = {}
        for file in files:
            try:
                shard: Any = safe_open(file, framework="pt", device="cpu")
                self._shards.update((name, shard) for name in shard.offset_keys())
            except (SafetensorError, OSError) as error:
                raise StartupError(f"{file} is damaged or truncated ({error}); download it again") from error
        self.weights_bytes = sum(file.stat().st_size for file in files)
        self.fingerprint = fingerprint_of([path / "config.json", *files], _HEADER_BYTES)

    def names(self) -> list[str]:
        return list(self._shards)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._shards[name].get_slice(name).get_shape())

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor: torch.Tensor = self._shards[name].get_tensor(name)
        return tensor if dtype is None else tensor.to(dtype)

    def quantised(self, name: str) -> QuantisedMatrix | None:
        if name not in self._shards:
            raise KeyError(name)
        return None

    def close(self) -> None:
        self._shards = {}
