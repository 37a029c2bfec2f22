"""A GGUF file seen as a Hugging Face checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from gguf.constants import GGMLQuantizationType

from mlxcel.runners.weights.checkpoint import Checkpoint
from mlxcel.runners.weights.fingerprint import fingerprint_of
from mlxcel.runners.weights.gguf.architectures import describe
from mlxcel.runners.weights.gguf.blocks import affine_rows, dense_rows
from mlxcel.runners.weights.gguf.parts import GgufParts
from mlxcel.runners.weights.gguf.recipes import Part, Recipe
from mlxcel.runners.weights.matrix import QuantisedMatrix


class GgufCheckpoint(Checkpoint):
    """A GGUF model in one file or several."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufParts(path)
        description = describe(self._file)
        self.config = description.config
        self.generation_config = description.generation_config
        self._recipes = description.recipes
        self.weights_bytes = sum(tensor.size_bytes for tensor in self._file.tensors.values())
        self.fingerprint = fingerprint_of(self._file.files, self._file.header_bytes)

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
        runs = [dense_rows(raw, kind) for raw, kind in self._runs(recipe)]
        if recipe.combine is not None:
            shapes = [self._part_shape(part) for part in recipe.parts]
            tensor = recipe.combine([run.to(torch.float32).view(shape) for run, shape in zip(runs, shapes, strict=True)])
        else:
            rows = runs[0] if len(runs) == 1 else torch.cat(runs)
            if recipe.order is not None and len(runs) > 1:
                rows = rows[recipe.order(rows.shape[0])]
            tensor = rows.view(self.shape(name))
        if recipe.columns is not None:
            tensor = tensor[..., recipe.columns(tensor.shape[-1])]
        return tensor if dtype is None else tensor.to(dtype)

    def quantised(self, name: str) -> QuantisedMatrix | None:
        recipe = self._recipes[name]
        if recipe.combine is not None or recipe.columns is not None or len(self.shape(name)) != 2:
            return None
        runs = self._runs(recipe)
        return affine_rows(*runs[0]) if len(runs) == 1 else None

    def close(self) -> None:
        self._file.close()

    def _part_shape(self, part: Part) -> tuple[int, ...]:
        shape = self._file.tensors[part.source].shape
        if part.index is not None:
            shape = shape[1:]
        return shape if part.rows is None else (part.rows[1] - part.rows[0], *shape[1:])

    def _runs(self, recipe: Recipe) -> list[tuple[torch.Tensor, GGMLQuantizationType]]:
        """Stored rows with their format, in order. Parts of one format that are only stacked make one run."""
        runs = [self._raw(part) for part in recipe.parts]
        if len(runs) > 1 and recipe.combine is None and len({kind for _, kind in runs}) == 1:
            runs = [(torch.cat([raw for raw, _ in runs]), runs[0][1])]
        if recipe.order is not None and len(runs) == 1:
            raw, kind = runs[0]
            runs = [(raw[recipe.order(raw.shape[0])], kind)]
        return runs

    def _raw(self, part: Part) -> tuple[torch.Tensor, GGMLQuantizationType]:
        """The stored bytes of a part, uint8 [rows, row_bytes]. A vector has one element a row."""
        tensor = self._file.tensors[part.source]
        rows = self._file.rows(tensor)
        if part.index is not None:
            count = math.prod(tensor.shape[1:-1])
            rows = rows[part.index * count : (part.index + 1) * count]
        if len(tensor.shape) - (part.index is not None) == 1:
            rows = rows.view(tensor.shape[-1], -1)
        if part.rows is not None:
            rows = rows[part.rows[0] : part.rows[1]]
        return rows, tensor.kind
