"""Puts an embedding model together: what is read before the server starts, and what its owner thread loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from transformers import AutoModel

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import EmbedderInfo, Pooling
from mlxcel.runners.embed.detect import BIDIRECTIONAL, LATE_INTERACTION, SIGLIP_TEXT, Embedder
from mlxcel.runners.embed.encoder import Encoder, load_dense
from mlxcel.runners.embed.late import LateEncoder, late_info, load_late
from mlxcel.runners.embed.layout import Layout, first_position, read_layout
from mlxcel.runners.embed.loading import load_tokenizer_backend, load_transformer
from mlxcel.runners.embed.packed import PackedTrunk
from mlxcel.runners.embed.siglip import SiglipEncoder, load_siglip, siglip_info
from mlxcel.runners.embed.threads import take_threads, yield_to_decoders
from mlxcel.runners.hub.folder import read_json

_L2 = 2


@dataclass(frozen=True, slots=True)
class EmbedderChoices:
    """How to run a model that embeds or ranks; None and 0 keep the checkpoint's own.

    ``beside_decoder``: a model that generates runs in the same process, and its tokens come first.
    """

    pooling: Pooling | None = None
    norm: int | None = None
    max_tokens: int = 0
    device: torch.device | None = None
    threads: int = 0
    beside_decoder: bool = False

    def settle_thread(self) -> None:
        """Settle the calling thread's share of the machine, before it loads the model."""
        if self.beside_decoder:
            yield_to_decoders()
        else:
            take_threads(self.threads)


@dataclass(frozen=True, slots=True)
class OpenedEmbedder:
    """An embedding checkpoint without its weights; ``load`` reads them, on the thread that will run the model."""

    info: EmbedderInfo
    tokenizer: tokenizers.Tokenizer
    lower_case: bool
    load: Callable[[], Encoder | SiglipEncoder | LateEncoder]


def open_embedder(folder: Path, found: Embedder, choices: EmbedderChoices | None = None) -> OpenedEmbedder:
    """Read everything but the weights.

    Raises:
        StartupError: the checkpoint is damaged or asks for something that is not served.
    """
    choices = choices or EmbedderChoices()
    layout = read_layout(folder, pooling=choices.pooling, max_tokens=choices.max_tokens or None)
    config = read_json(folder / "config.json")
    tokenizer = load_tokenizer_backend(folder)
    own_norm = _L2 if config.get("normalize", True) else -1
    norm = own_norm if choices.norm is None else choices.norm
    if found.family in SIGLIP_TEXT:
        info = siglip_info(folder, max_tokens=layout.max_tokens, norm=norm)
    elif found.family == LATE_INTERACTION:
        info = late_info(folder, max_tokens=layout.max_tokens, norm=norm)
    else:
        info = EmbedderInfo(
            family=found.family,
            dimensions=layout.dense[-1].out_features if layout.dense else int(config["hidden_size"]),
            max_tokens=layout.max_tokens,
            vocab_size=int(config.get("vocab_size") or tokenizer.get_vocab_size()),
            pooling=layout.pooling,
            norm=norm,
        )
    return OpenedEmbedder(info, tokenizer, layout.lower_case, lambda: _load(folder, found, layout, choices))


def _load(folder: Path, found: Embedder, layout: Layout, choices: EmbedderChoices) -> Encoder | SiglipEncoder | LateEncoder:
    choices.settle_thread()
    device = choices.device or torch.device("cpu")
    if found.family in SIGLIP_TEXT:
        return load_siglip(folder, device)
    if found.family == LATE_INTERACTION:
        return load_late(folder, device)
    model = load_transformer(folder, AutoModel, device=device, dtype=torch.float32, unused=("pooler.",))
    try:
        trunk = PackedTrunk(
            model,
            bidirectional=found.family in BIDIRECTIONAL,
            first_position=first_position(found.family, read_json(folder / "config.json")),
        )
    except ValueError as error:
        raise StartupError(f"model type {found.family!r} cannot be served: {error}") from None
    return Encoder(trunk, layout.pooling, load_dense(layout.dense, device), device)
