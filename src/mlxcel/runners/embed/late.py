"""Late interaction: a vector for every token, compared by MaxSim (ColQwen2, Faysse et al. 2024, arXiv:2407.01449)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import ColQwen2ForRetrieval

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import EmbedderInfo, TokenRow, Vector
from mlxcel.runners.embed.encoder import vectors_of
from mlxcel.runners.embed.loading import load_transformer
from mlxcel.runners.embed.packed import PackedTrunk, Trunk, group_rows
from mlxcel.runners.hub.folder import read_json


class LateEncoder:
    """Implements :class:`~mlxcel.core.ports.RowRunner` for one vector a token."""

    def __init__(self, trunk: Trunk, projection: torch.nn.Module, device: torch.device) -> None:
        self._trunk = trunk
        self._projection = projection
        self._device = device

    def run(self, rows: Sequence[TokenRow]) -> list[Vector]:
        """Matrices [tokens, dimensions] before scaling, float32."""
        found: dict[int, Vector] = {}
        groups = group_rows(rows, self._device)
        with torch.inference_mode():
            for group, states in zip(groups, self._trunk.states(groups), strict=True):
                found.update(zip(group.rows, vectors_of(self._projection(states)), strict=True))
        return [found[index] for index in range(len(rows))]

    def close(self) -> None:
        """Nothing outlives the object."""


def late_info(folder: Path, *, max_tokens: int, norm: int) -> EmbedderInfo:
    """Facts of a late-interaction checkpoint. Raises StartupError when its configuration lacks one."""
    config = read_json(folder / "config.json")
    vlm = config.get("vlm_config") or {}
    vocab_size = (vlm.get("text_config") or {}).get("vocab_size") or vlm.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise StartupError("the checkpoint's config.json names no vocab_size of its language model")
    return EmbedderInfo("colqwen2", int(config.get("embedding_dim", 128)), max_tokens, vocab_size, None, norm)


def load_late(folder: Path, device: torch.device) -> LateEncoder:
    """The language model and the projection of a ColQwen2 checkpoint.

    Raises:
        StartupError: it cannot be loaded.
    """
    model = load_transformer(folder, ColQwen2ForRetrieval, device=device, dtype=torch.float32)
    return LateEncoder(PackedTrunk(model.vlm.language_model), model.embedding_proj_layer, device)
