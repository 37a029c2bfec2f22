"""The tensor directory of a GGUF file, and raw tensor bytes from a memory map.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.tensor_files import refuse_lfs_pointer
from mlxcel.text.gguf_metadata import GgufCursor, read_header

_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor directory.

    Attributes:
        shape: outermost dimension first, as in torch (the file stores it innermost first).
        kind: storage format of the elements.
        offset: first byte, counted from the start of the file.
        size_bytes: bytes of the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size_bytes: int


class GgufFile:
    """An open GGUF file. Raises StartupError when it is not GGUF, is damaged or is shorter than its directory says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_lfs_pointer(path)
        self.size_bytes = path.stat().st_size
        try:
            with path.open("rb") as file:
                # A private writable map: torch warns about memory that it must not write to.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            cursor = GgufCursor(mapped, str(path))
            self.metadata, tensor_count = read_header(cursor)
            entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
        except (ValueError, KeyError, OSError) as error:
            raise StartupError(f"{path} is damaged: its GGUF header cannot be read ({error})") from error
        self.header_bytes = cursor.position
        data_start = -(-cursor.position // self._alignment()) * self._alignment()
        self.tensors = {entry.name: replace(entry, offset=data_start + entry.offset) for entry in entries}
        self._check_extent()
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise StartupError(f"{self.path} is damaged: general.alignment is not a positive integer")
        return alignment

    def _check_extent(self) -> None:
        end = max((tensor.offset + tensor.size_bytes for tensor in self.tensors.values()), default=self.header_bytes)
        if end > self.size_bytes:
            raise StartupError(
                f"{self.path} is truncated: it has {self.size_bytes} bytes, but its tensors need {end}; download it again"
            )

    def rows(self, tensor: GgufTensor) -> torch.Tensor:
        """Raw bytes of a tensor, uint8 [rows, row_bytes], a view into the map; a row runs along the innermost dimension."""
        raw = self._bytes[tensor.offset : tensor.offset + tensor.size_bytes]
        return raw.view(math.prod(tensor.shape[:-1]), -1)

    def close(self) -> None:
        """Let go of the map; it is unmapped once no tensor view refers to it."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self.tensors = {}


def _tensor_entry(cursor: GgufCursor) -> GgufTensor:
    """The next entry of the tensor directory, its offset still counted from the start of the tensor data."""
    name = cursor.string()
    dimension_count = cursor.u32()
    if not 0 < dimension_count <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name[:40]} has {dimension_count} dimensions")
    shape = tuple(reversed([cursor.u64() for _ in range(dimension_count)]))
    kind = GGMLQuantizationType(cursor.u32())
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_elements or not all(shape):
        raise ValueError(f"tensor {name[:40]} has the shape {shape}, which its format {kind.name} cannot have")
    size_bytes = math.prod(shape[:-1]) * (shape[-1] // block_elements) * block_bytes
    return GgufTensor(name, shape, kind, cursor.u64(), size_bytes)
