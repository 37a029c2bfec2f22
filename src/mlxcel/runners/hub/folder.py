"""What a model folder holds, judged from file names, sizes and JSON alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mlxcel.core.errors import StartupError

INDEX_NAME = "model.safetensors.index.json"
_LATER_PART = re.compile(r".+-(?!00001)\d{5}-of-\d{5}\.gguf")
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit


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


def weight_map_of(folder: Path) -> dict[str, str]:
    """Tensor names and their files from the index; empty when there is no index. Raises StartupError for a bad index."""
    index = read_json(folder / INDEX_NAME)
    if not index:
        return {}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise StartupError(f"{folder / INDEX_NAME} has no weight_map of file names")
    if any(Path(name).name != name for name in weight_map.values()):
        raise StartupError(f"{folder / INDEX_NAME} names files outside its folder")
    return weight_map


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model, from the index when there is one. Raises StartupError naming a missing one."""
    weight_map = weight_map_of(folder)
    if not weight_map and (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not weight_map:
        found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
        return [path for path in found if path.name.startswith("model")] or found
    files = [folder / name for name in sorted(set(weight_map.values()))]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise StartupError(
            f"{folder} lacks {len(missing)} of {len(files)} weight files, first {missing[0]}; download the model again"
        )
    return files


def gguf_models(folder: Path) -> list[Path]:
    """GGUF models in a folder; of a model in several parts, the first part."""
    return [path for path in sorted(folder.glob("*.gguf")) if not _LATER_PART.fullmatch(path.name)]


def is_model(folder: Path) -> bool:
    """Whether a folder has a configuration and at least one weight file, complete or not."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def is_complete(folder: Path) -> bool:
    """Whether every weight file is there at its full size; a folder of GGUF models counts as complete."""
    if not is_model(folder):
        return bool(gguf_models(folder))
    try:
        files = weight_files(folder)
    except StartupError:
        return False
    return all(_has_all_bytes(path) for path in files)


def _has_all_bytes(path: Path) -> bool:
    """A safetensors file says in its header (https://github.com/huggingface/safetensors) where its last tensor ends."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > _MAX_HEADER_BYTES:
            return False
        try:
            header = json.loads(file.read(header_bytes))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
    return path.stat().st_size == 8 + header_bytes + int(end)
