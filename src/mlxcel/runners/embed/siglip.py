"""The text tower of SigLIP, whose texts all have one width.

It was trained without a mask on texts padded to 64 tokens, and its vector is the projected state of the last place, padding
or not (Zhai et al. 2023, arXiv:2303.15343). So padding is part of the input here, and neighbours still change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import SiglipTextConfig, SiglipTextModel

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import EmbedderInfo, TokenRow, Vector
from mlxcel.runners.embed.encoder import vectors_of
from mlxcel.runners.embed.loading import padding_id
from mlxcel.runners.hub.folder import read_json
from mlxcel.runners.weights import open_checkpoint

_PREFIX = "text_model."
_OTHER = ("vision_model.", "logit_")


class SiglipEncoder:
    """Implements :class:`~mlxcel.core.ports.RowRunner`."""

    def __init__(self, model: SiglipTextModel, pad_id: int, device: torch.device) -> None:
        self._model = model
        self._pad_id = pad_id
        self._width = int(model.config.max_position_embeddings)
        self._device = device

    def run(self, rows: Sequence[TokenRow]) -> list[Vector]:
        """Vectors before scaling, float32."""
        padded = [[*row.token_ids, *[self._pad_id] * (self._width - len(row.token_ids))] for row in rows]
        with torch.inference_mode():
            pooled: torch.Tensor = self._model(input_ids=torch.tensor(padded, device=self._device)).pooler_output
        return vectors_of(pooled)

    def close(self) -> None:
        """Nothing outlives the object."""


def siglip_info(folder: Path, *, max_tokens: int, norm: int) -> EmbedderInfo:
    """Facts of a SigLIP checkpoint. Raises StartupError when its configuration cannot be read."""
    config = _text_config(folder)
    return EmbedderInfo(
        family="siglip",
        dimensions=int(config.projection_size or config.hidden_size),
        max_tokens=min(max_tokens, config.max_position_embeddings),
        vocab_size=config.vocab_size,
        pooling="lasttoken",
        norm=norm,
    )


def load_siglip(folder: Path, device: torch.device) -> SiglipEncoder:
    """The text tower of a SigLIP checkpoint; the vision tower is left on disk.

    Raises:
        StartupError: weights are missing or do not fit.
    """
    model = SiglipTextModel(_text_config(folder))
    checkpoint = open_checkpoint(folder)
    names = [name for name in checkpoint.names() if not name.startswith(_OTHER) and not name.endswith("position_ids")]
    weights = {name.removeprefix(_PREFIX): checkpoint.tensor(name, torch.float32) for name in names}
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise StartupError("the checkpoint's weights do not fit the text tower of SigLIP") from None
    return SiglipEncoder(model.to(device).eval(), padding_id(folder), device)


def _text_config(folder: Path) -> SiglipTextConfig:
    raw = read_json(folder / "config.json")
    text = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else raw
    try:
        return SiglipTextConfig(**{key: value for key, value in (text or {}).items() if key != "model_type"})
    except (TypeError, ValueError) as error:
        raise StartupError(f"transformers cannot read the config of model type 'siglip': {error}") from None
