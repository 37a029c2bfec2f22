"""What a loader sees of a checkpoint on disk, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from mlxcel.runners.weights.matrix import QuantisedMatrix

CheckpointKind = Literal["safetensors", "gguf", "mlx"]


class Checkpoint(ABC):
    """Named weights and their configuration, read lazily from memory-mapped files.

    Tensor names and shapes are those of the Hugging Face checkpoint of the same model
    (``model.layers.0.self_attn.q_proj.weight``), whatever the files call them.

    Attributes:
        path: the file or folder.
        kind: the container format.
        config: contents of ``config.json``, or the same synthesised from the file's metadata; never a quantisation section.
        generation_config: contents of ``generation_config.json``; empty when there is none.
        weights_bytes: bytes of all tensors as stored.
        fingerprint: hex digest that changes when the weights or the configuration do; samples the content, so it is cheap.
    """

    path: Path
    kind: CheckpointKind
    config: dict[str, Any]
    generation_config: dict[str, Any]
    weights_bytes: int
    fingerprint: str

    @abstractmethod
    def names(self) -> list[str]:
        """All tensor names, in file order."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The dense shape of a tensor. Raises KeyError for an unknown name."""

    @abstractmethod
    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A dense tensor on the CPU, decoded when it is stored quantised. Raises KeyError for an unknown name.

        Args:
            dtype: wanted dtype; None keeps the stored one (float32 for quantised tensors).

        Returns:
            Possibly a view into the file: clone before writing.
        """

    @abstractmethod
    def quantised(self, name: str) -> QuantisedMatrix | None:
        """The tensor in its exact affine form; None when it is not stored in a format that has one."""

    def state_dict_iter(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors one after another, each decoded when its turn comes."""
        for name in self.names():
            yield name, self.tensor(name, dtype)

    @abstractmethod
    def close(self) -> None:
        """Let go of the files. Tensors handed out stay valid."""
