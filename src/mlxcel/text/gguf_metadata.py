"""The key-value header of a GGUF file, read without touching the weights.

GGUF v2 and v3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian. Every length is checked against
the file before it is used, so a truncated or hostile file ends in :class:`StartupError`, never in a huge allocation.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlxcel.core.errors import StartupError

_MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
# GGUF value type -> numpy dtype of a fixed-size scalar.
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"), 5: np.dtype("<i4"),
    6: np.dtype("<f4"), _BOOL: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_ARRAY_DEPTH = 4


class GgufCursor:
    """A bounds-checked reading position in the mapped file."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data = data
        self.position = 0
        self.size = len(data)
        self.name = name

    def fail(self, why: str) -> StartupError:
        return StartupError(f"{self.name} is not a readable GGUF file: {why}")

    def take(self, count: int) -> bytes:
        start = self.position
        if count > self.size - start:
            raise self.fail("it ends in the middle of its header")
        self.position = start + count
        return self.data[start : self.position]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self) -> str:
        return self.take(self.u64()).decode("utf-8", "replace")

    def strings(self, count: int) -> list[str]:
        """``count`` length-prefixed strings; the hot loop of a vocabulary with hundreds of thousands of entries."""
        if count * 8 > self.size - self.position:
            raise self.fail("an array is longer than the file")
        data, size, unpack = self.data, self.size, _U64.unpack_from
        position = self.position
        found: list[str] = []
        for _ in range(count):
            if position + 8 > size:
                raise self.fail("it ends in the middle of an array")
            start = position + 8
            position = start + unpack(data, position)[0]
            if position > size:
                raise self.fail("it ends in the middle of a string")
            found.append(data[start:position].decode("utf-8", "replace"))
        self.position = position
        return found


def _value(cursor: GgufCursor, kind: int, depth: int = 0) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        if depth >= _MAX_ARRAY_DEPTH:
            raise cursor.fail("arrays are nested too deeply")
        item_kind, count = cursor.u32(), cursor.u64()
        if item_kind == _STRING:
            return cursor.strings(count)
        if item_kind == _ARRAY:
            if count * 12 > cursor.size - cursor.position:
                raise cursor.fail("an array is longer than the file")
            return [_value(cursor, _ARRAY, depth + 1) for _ in range(count)]
        dtype = _SCALARS.get(item_kind)
        if dtype is None:
            raise cursor.fail(f"unknown value type {item_kind}")
        return np.frombuffer(cursor.take(count * dtype.itemsize), dtype=dtype)
    dtype = _SCALARS.get(kind)
    if dtype is None:
        raise cursor.fail(f"unknown value type {kind}")
    return np.frombuffer(cursor.take(dtype.itemsize), dtype=dtype)[0].item()


def read_gguf_metadata(path: Path) -> Mapping[str, Any]:
    """Read all keys of ``path``. Strings and numbers come as Python values, numeric arrays as numpy, string arrays as lists.

    Raises:
        StartupError: the file is missing, not GGUF, of an unsupported version, or damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read_header(GgufCursor(data, path.name))[0]
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise StartupError(f"{path.name} cannot be read as a GGUF file") from error


def read_header(cursor: GgufCursor) -> tuple[dict[str, Any], int]:
    """All keys, and the number of tensors; the cursor is left at the first entry of the tensor directory."""
    if cursor.take(4) != _MAGIC:
        raise cursor.fail("the magic number is missing")
    version = cursor.u32()
    if version not in (2, 3):
        raise cursor.fail(f"version {version} is not supported")
    tensor_count = cursor.u64()
    key_count = cursor.u64()
    if key_count * 12 > cursor.size:
        raise cursor.fail("the key count is larger than the file")
    found: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        found[key] = _value(cursor, cursor.u32())
    return found, tensor_count
