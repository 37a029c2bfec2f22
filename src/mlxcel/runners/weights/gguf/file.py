"""Reads the GGUF container: metadata, the tensor directory, and raw tensor bytes from a memory map.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.tensor_files import refuse_lfs_pointer

MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_FLOAT32_TYPE, _STRING_TYPE, _ARRAY_TYPE = 6, 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


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
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise StartupError(f"{path} is not a GGUF file (it does not start with the letters GGUF)")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch warns about read-only memory
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        try:
            self._read_directory()
        except (struct.error, UnicodeDecodeError, ValueError, OverflowError, KeyError) as error:
            raise StartupError(f"{path} is damaged: its GGUF header cannot be read ({error})") from error
        self._check_extent()

    def _read_directory(self) -> None:
        cursor = _Cursor(self._map, 4)
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise StartupError(f"{self.path} is GGUF version {version}; versions 2 and 3 (little-endian) are supported")
        tensor_count, field_count = cursor.scalar("Q"), cursor.scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(field_count):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("I"))
        entries = [cursor.tensor_entry() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError("general.alignment is not a positive integer")
        self.header_bytes = cursor.offset
        data_start = -(-cursor.offset // alignment) * alignment
        self.tensors = {entry.name: _placed(entry, data_start) for entry in entries}

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


def _placed(entry: GgufTensor, data_start: int) -> GgufTensor:
    return GgufTensor(entry.name, entry.shape, entry.kind, data_start + entry.offset, entry.size_bytes)


class _Cursor:
    """Reads values one after another; struct.error when the bytes run out."""

    def __init__(self, source: mmap.mmap, offset: int) -> None:
        self._source = source
        self.offset = offset

    def scalar(self, code: str) -> Any:
        (value,) = self.array(code, 1)
        return value

    def array(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(code) * count
        if self.offset + size > len(self._source):
            raise struct.error("the file ends inside the header")
        values = struct.unpack_from(f"<{count}{code}", self._source, self.offset)
        self.offset += size
        return values

    def string(self) -> str:
        length = self.scalar("Q")
        if self.offset + length > len(self._source):
            raise struct.error("the file ends inside the header")
        text = self._source[self.offset : self.offset + length].decode("utf-8")
        self.offset += length
        return text

    def value(self, type_id: int) -> Any:
        if type_id == _STRING_TYPE:
            return self.string()
        if type_id != _ARRAY_TYPE:
            scalar = self.scalar(_SCALARS[type_id])
            # The shortest decimal that is this float32: 1e-05, not 9.999999747378752e-06.
            return float(str(np.float32(scalar))) if type_id == _FLOAT32_TYPE else scalar
        item_type, count = self.scalar("I"), self.scalar("Q")
        if count > len(self._source):  # every item takes at least a byte
            raise struct.error("an array is longer than the file")
        if item_type in _SCALARS:
            return list(self.array(_SCALARS[item_type], count))
        return [self.value(item_type) for _ in range(count)]

    def tensor_entry(self) -> GgufTensor:
        name = self.string()
        dimension_count = self.scalar("I")
        if not 0 < dimension_count <= 4:
            raise ValueError(f"tensor {name} has {dimension_count} dimensions")
        shape = tuple(reversed(self.array("Q", dimension_count)))
        kind = GGMLQuantizationType(self.scalar("I"))
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_elements:
            raise ValueError(f"tensor {name} has rows of {shape[-1]}, not a multiple of {block_elements}")
        size_bytes = block_bytes
        for dimension in (*shape[:-1], shape[-1] // block_elements):
            size_bytes *= dimension
        return GgufTensor(name, shape, kind, self.scalar("Q"), size_bytes)
