"""A GGUF model in one file or several (``NAME-00001-of-00003.gguf``), seen as one."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.gguf.file import GgufFile, GgufTensor

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufParts:
    """The files of one model.

    Attributes:
        path: the first file, which holds the metadata.
        files: all of them, in order.
        metadata: every key-value pair of the first file, decoded.
        tensors: the directory of all files.

    Raises:
        StartupError: a file is missing, damaged or not GGUF, or ``path`` is not the first part.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = [GgufFile(part) for part in _part_paths(path)]
        self.files = [part.path for part in self._parts]
        self.metadata = self._parts[0].metadata
        self._owners = {name: part for part in self._parts for name in part.tensors}
        self.tensors: dict[str, GgufTensor] = {name: part.tensors[name] for name, part in self._owners.items()}
        self.header_bytes = self._parts[0].header_bytes

    def rows(self, tensor: GgufTensor) -> torch.Tensor:
        """Raw bytes of a tensor, uint8 [rows, row_bytes], a view into the file."""
        return self._owners[tensor.name].rows(tensor)

    def close(self) -> None:
        """Let go of the files; tensors handed out stay valid."""
        for part in self._parts:
            part.close()


def _part_paths(path: Path) -> list[Path]:
    named = _PART.fullmatch(path.name)
    if named is None:
        return [path]
    if int(named["number"]) != 1:
        first = f"{named['stem']}-00001-of-{named['count']}.gguf"
        raise StartupError(f"{path} is a later part of a model; open its first part, {first}")
    paths = [
        path.with_name(f"{named['stem']}-{number:05}-of-{named['count']}.gguf")
        for number in range(1, int(named["count"]) + 1)
    ]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise StartupError(f"{path} lacks {len(missing)} of {len(paths)} parts, first {missing[0]}; download it again")
    return paths
