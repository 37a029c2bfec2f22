"""Tells the checkpoint formats apart and opens them."""

from __future__ import annotations

from pathlib import Path

from mlxcel.core.errors import StartupError
from mlxcel.runners.hub.folder import gguf_models, is_model
from mlxcel.runners.weights.checkpoint import Checkpoint
from mlxcel.runners.weights.gguf.checkpoint import GgufCheckpoint
from mlxcel.runners.weights.safetensors_folder import SafetensorsCheckpoint

_PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, or a folder of safetensors in Hugging Face or MLX layout.

    Raises:
        StartupError: missing, damaged, of a foreign format or of an architecture that is not supported; one line.
    """
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise StartupError(f"{path} does not exist")
    if path.suffix in _PICKLE_SUFFIXES:
        raise StartupError(f"{path} is a pickle file, which can run code when opened; convert it to safetensors")
    return GgufCheckpoint(path)


def _open_folder(folder: Path) -> Checkpoint:
    if is_model(folder):
        return SafetensorsCheckpoint(folder)
    found = gguf_models(folder)
    if len(found) == 1:
        return GgufCheckpoint(found[0])
    if found:
        raise StartupError(f"{folder} holds {len(found)} GGUF models; name one of them, such as {found[0].name}")
    if (folder / "adapter_config.json").is_file():
        raise StartupError(f"{folder} holds a LoRA adapter, not a model; load its base model and pass it with --lora")
    if any(path.suffix in _PICKLE_SUFFIXES for path in folder.iterdir()):
        raise StartupError(f"{folder} holds pickle files, which can run code when opened; convert it to safetensors")
    raise StartupError(f"{folder} holds no model: expected config.json with *.safetensors, or a .gguf file")
