"""Tells the checkpoint formats apart and opens them."""

from __future__ import annotations

from pathlib import Path

from mlxcel.core.errors import StartupError
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
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return SafetensorsCheckpoint(folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return GgufCheckpoint(ggufs[0])
    raise StartupError(f"{folder} holds no model: expected config.json with *.safetensors, or one .gguf file")
