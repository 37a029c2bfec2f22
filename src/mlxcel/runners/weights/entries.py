"""The ways a tensor can lie in a safetensors folder: each knows its shape, its values, and its affine form if it has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.tensor_files import TensorFiles


class Entry(Protocol):
    def shape(self) -> tuple[int, ...]: ...

    def dense(self) -> torch.Tensor:
        """Possibly a view into the file."""

    def quantised(self) -> QuantisedMatrix | None: ...


@dataclass(frozen=True, slots=True)
class PlainEntry:
    """A tensor stored as it is used, or one element of the outermost dimension of it."""

    files: TensorFiles
    name: str
    index: int | None = None

    def shape(self) -> tuple[int, ...]:
        return self.files.shape(self.name)[self.index is not None :]

    def dense(self) -> torch.Tensor:
        tensor = self.files.tensor(self.name)
        return tensor if self.index is None else tensor[self.index]

    def quantised(self) -> QuantisedMatrix | None:
        return None


@dataclass(frozen=True, slots=True)
class CombinedEntry:
    """A tensor made from the dense values of others. ``combine`` must also work on meta tensors, which give the shape."""

    sources: tuple[Entry, ...]
    combine: Callable[[Sequence[torch.Tensor]], torch.Tensor]

    def shape(self) -> tuple[int, ...]:
        return tuple(self.combine([torch.empty(source.shape(), device="meta") for source in self.sources]).shape)

    def dense(self) -> torch.Tensor:
        return self.combine([source.dense() for source in self.sources])

    def quantised(self) -> QuantisedMatrix | None:
        return None
