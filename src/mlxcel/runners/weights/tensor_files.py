"""Named tensors of one or more memory-mapped safetensors files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mlxcel.core.errors import StartupError

_LFS_POINTER = b"version https://git-lfs"


class TensorFiles:
    """An open set of safetensors files. Raises StartupError when one is missing, damaged or truncated.

    Attributes:
        format: the framework the first file says it was written for ("pt", "mlx"); empty when it says nothing.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._handles: dict[str, Any] = {}
        self.format = ""
        for file in files:
            refuse_lfs_pointer(file)
            try:
                handle: Any = safe_open(file, framework="pt", device="cpu")
                self._handles.update((name, handle) for name in handle.offset_keys())
                self.format = self.format or str((handle.metadata() or {}).get("format", ""))
            except (SafetensorError, OSError) as error:
                raise StartupError(f"{file} is damaged or truncated ({error}); download it again") from error

    def names(self) -> list[str]:
        return list(self._handles)

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handles[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """A view into the file."""
        tensor: torch.Tensor = self._handles[name].get_tensor(name)
        return tensor

    def close(self) -> None:
        self._handles = {}


def refuse_lfs_pointer(file: Path) -> None:
    """Raises StartupError when a file is what Git leaves in place of a large file that was not fetched."""
    with file.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise StartupError(f"{file} is a Git LFS pointer, not the weights; fetch it with `git lfs pull`")


def missing_names(files: TensorFiles, weight_map: Mapping[str, str]) -> list[str]:
    """Tensors an index promises that the files do not hold."""
    return [name for name in weight_map if name not in files]
