"""Typed access to the keys of one architecture in a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mlxcel.core.errors import StartupError
from mlxcel.runners.weights.gguf.file import GgufTensor
from mlxcel.runners.weights.gguf.parts import GgufParts


class Metadata:
    """The metadata and the tensor directory of a file; keys are looked up under the architecture's own prefix.

    Attributes:
        architecture: value of ``general.architecture``.
        tensors: the tensor directory by GGUF name.
    """

    def __init__(self, file: GgufParts) -> None:
        self._file = file
        self.architecture = str(file.metadata.get("general.architecture"))
        self.tensors: Mapping[str, GgufTensor] = file.tensors

    def get(self, key: str, default: Any = None) -> Any:
        value = self._file.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, np.ndarray):
            return value.tolist()
        return _shortest(value) if isinstance(value, float) else value

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._file.metadata

    def top(self, key: str) -> Any:
        """A key outside the architecture's prefix, such as ``tokenizer.ggml.eos_token_id``."""
        return self._file.metadata.get(key)

    def need(self, key: str) -> Any:
        """Raises StartupError when the key is missing."""
        value = self.get(key)
        if value is None:
            raise StartupError(f"{self._file.path} lacks the metadata key {self.architecture}.{key}")
        return value

    def largest(self, key: str) -> Any:
        """A needed number; where the file gives one per layer, the largest."""
        value = self.need(key)
        return max(value) if isinstance(value, list) else value

    def present(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """Configuration fields whose metadata key the file has."""
        return {field: value for field, key in keys.items() if (value := self.get(key)) is not None}

    def rows(self, tensor: GgufTensor) -> torch.Tensor:
        return self._file.rows(tensor)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises StartupError when the file lacks it."""
        if name not in self.tensors:
            raise StartupError(f"{self._file.path} lacks the tensor {name}")
        return self.tensors[name].shape


def _shortest(number: float) -> float:
    """The shortest decimal of a float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(number))) if float(np.float32(number)) == number else number
