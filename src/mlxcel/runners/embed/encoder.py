"""The runner of a text embedding model: token rows in, pooled vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import Pooling, TokenRow, Vector
from mlxcel.runners.embed.layout import DenseLayer
from mlxcel.runners.embed.packed import Trunk, group_rows

_ACTIVATIONS: dict[str, type[torch.nn.Module]] = {
    "Identity": torch.nn.Identity,
    "Tanh": torch.nn.Tanh,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
    "Sigmoid": torch.nn.Sigmoid,
}


@dataclass(slots=True)
class Encoder:
    """Implements :class:`~mlxcel.core.ports.RowRunner` for one vector an input."""

    trunk: Trunk
    pooling: Pooling
    dense: torch.nn.Sequential
    device: torch.device

    def run(self, rows: Sequence[TokenRow]) -> list[Vector]:
        """Vectors before scaling, float32."""
        found: dict[int, Vector] = {}
        groups = group_rows(rows, self.device)
        with torch.inference_mode():
            for group, states in zip(groups, self.trunk.states(groups), strict=True):
                found.update(zip(group.rows, vectors_of(self.dense(pool(states, self.pooling))), strict=True))
        return [found[index] for index in range(len(rows))]

    def close(self) -> None:
        """Nothing outlives the object."""


def vectors_of(pooled: torch.Tensor) -> list[Vector]:
    """The rows of [rows, dimensions]."""
    matrix = pooled.float().cpu().numpy().astype("<f4", copy=False)
    return [Vector(vector.tobytes(), vector.shape) for vector in matrix]


def pool(states: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """[rows, length, hidden] to [rows, hidden]; there is no padding to leave out."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "lasttoken":
        return states[:, -1]
    return states.mean(1) if pooling == "mean" else states.amax(1)


def load_dense(layers: Sequence[DenseLayer], device: torch.device) -> torch.nn.Sequential:
    """The linear layers after pooling, in float32.

    Raises:
        StartupError: a layer's weights are missing or do not fit, or its activation is not served.
    """
    modules: list[torch.nn.Module] = []
    for layer in layers:
        if layer.activation not in _ACTIVATIONS:
            raise StartupError(f"the dense layer's activation {layer.activation!r} is not served")
        linear = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias)
        weights = _weights(layer.folder)
        try:
            linear.load_state_dict({name.removeprefix("linear."): value.float() for name, value in weights.items()})
        except RuntimeError:
            raise StartupError(f"{layer.folder} holds weights that do not fit its dense layer") from None
        modules += [linear, _ACTIVATIONS[layer.activation]()]
    return torch.nn.Sequential(*modules).to(device).eval()


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise StartupError(f"{path} is missing; download the model again")
    weights: dict[str, torch.Tensor] = load_file(path)
    return weights
