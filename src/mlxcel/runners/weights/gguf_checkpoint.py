"""A GGUF file seen as a Hugging Face checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from gguf.constants import GGMLQuantizationType

from mlxcel.runners.weights.checkpoint import Checkpoint
from mlxcel.runners.weights.fingerprint import fingerprint_of
from mlxcel.runners.weights.gguf_architectures import describe
from mlxcel.runners.weights.gguf_blocks import affine_rows, dense_rows
from mlxcel.runners.weights.gguf_file import GgufFile
from mlxcel.runners.weights.gguf_recipes import Part
from mlxcel.runners.weights.matrix import QuantisedMatrix


class GgufCheckpoint(Checkpoint):
    """One GGUF file.

    Attributes:
        metadata: every key-value pair of the file (tokeniser included), decoded.
    """

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        self.metadata = self._file.metadata
        description = describe(self._file)
        self.config = description.config
        self.generation_config = description.generation_config
        self._recipes = description.recipes
        self.weights_bytes = sum(tensor.size_bytes for tensor in self._file.tensors.values())
        self.fingerprint = fingerprint_of([path], self._file.header_bytes)

    def names(self) -> list[str]:
        return list(self._recipes)

    def shape(self, name: str) -> tuple[int, ...]:
        recipe = self._recipes[name]
        shapes = [self._part_shape(part) for part in recipe.parts]
        if recipe.combine is not None:
            return tuple(recipe.combine([torch.empty(shape, device="meta") for shape in shapes]).shape)
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        recipe = self._recipes[name]
        dense = [dense_rows(*self._raw(part)).view(self._part_shape(part)) for part in recipe.parts]
        if recipe.combine is not None:
            tensor = recipe.combine([part.to(torch.float32) for part in dense])
        else:
            tensor = dense[0] if len(dense) == 1 else torch.cat(dense)
        return tensor if dtype is None else tensor.to(dtype)

    def quantised(self, name: str) -> QuantisedMatrix | None:
        recipe = self._recipes[name]
        if recipe.combine is not None or any(len(self._part_shape(part)) != 2 for part in recipe.parts):
            return None
        raws = [self._raw(part) for part in recipe.parts]
        kinds = {kind for _, kind in raws}
        if len(kinds) != 1:
            return None
        return affine_rows(raws[0][0] if len(raws) == 1 else torch.cat([raw for raw, _ in raws]), raws[0][1])

    def close(self) -> None:
        self._file.close()

    def _part_shape(self, part: Part) -> tuple[int, ...]:
        shape = self._file.tensors[part.source].shape
        if part.index is not None:
            shape = shape[1:]
        return shape if part.rows is None else (part.rows[1] - part.rows[0], *shape[1:])

    def _raw(self, part: Part) -> tuple[torch.Tensor, GGMLQuantizationType]:
        """The stored bytes of a part, uint8 [rows, row_bytes]; a vector is one element a row when its order matters."""
        tensor = self._file.tensors[part.source]
        rows = self._file.rows(tensor)
        if part.index is not None:
            count = math.prod(tensor.shape[1:-1])
            rows = rows[part.index * count : (part.index + 1) * count]
        if len(tensor.shape) == 1 and (part.rows is not None or part.order is not None):
            rows = rows.view(tensor.shape[0], -1)
        if part.rows is not None:
            rows = rows[part.rows[0] : part.rows[1]]
        if part.order is not None:
            rows = rows[part.order(rows.shape[0])]
        return rows, tensor.kind
