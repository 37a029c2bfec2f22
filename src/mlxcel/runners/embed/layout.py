"""The sentence-transformers layout of a checkpoint: the modules after the transformer, pooling, length limits.

Formats: ``modules.json``, ``1_Pooling/config.json`` and ``sentence_bert_config.json`` as sentence-transformers writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from mlxcel.core.errors import StartupError
from mlxcel.core.vectors import Pooling
from mlxcel.runners.hub.folder import read_json

MAX_TOKENS = 8192  # longest input of any model
_UNLIMITED_TOKENS = 1_000_000  # tokenizers write a huge number for "no limit"
_ABSOLUTE_POSITIONS = ("bert", "xlm-roberta", "xlm_roberta")
_DEFAULT_POOLING: Mapping[str, Pooling] = {"qwen3": "lasttoken"}
_LEGACY_MODES: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer after pooling; ``activation`` is the class name of its nonlinearity."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class Layout:
    """What follows the transformer.

    Attributes:
        pooling: how token states become one vector.
        dense: linear layers, in order.
        lower_case: texts are lower-cased before they are tokenised.
        max_tokens: longest input, special tokens included.
    """

    pooling: Pooling
    dense: tuple[DenseLayer, ...]
    lower_case: bool
    max_tokens: int


def read_layout(folder: Path, *, pooling: Pooling | None, max_tokens: int | None) -> Layout:
    """The layout of a checkpoint under the operator's choices.

    Raises:
        StartupError: a module or a pooling mode that is not served; the message names it.
    """
    config = read_json(folder / "config.json")
    family = str(config.get("model_type") or "")
    own = None if pooling is not None else _pooling_of(folder)
    sentence = read_json(folder / "sentence_bert_config.json")
    limit = length_limit(folder, config)
    return Layout(
        pooling=pooling or own or _DEFAULT_POOLING.get(family, "mean"),
        dense=_dense_layers(folder),
        lower_case=bool(sentence.get("do_lower_case")),
        max_tokens=min(limit, max_tokens) if max_tokens else limit,
    )


def length_limit(folder: Path, config: Mapping[str, Any]) -> int:
    """Longest input in tokens: the smallest of what the checkpoint's files say and ``MAX_TOKENS``."""
    limits = [MAX_TOKENS]
    for file, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        value = read_json(folder / file).get(key)
        if isinstance(value, (int, float)) and 0 < value < _UNLIMITED_TOKENS:
            limits.append(int(value))
    family = str(config.get("model_type") or "")
    positions = config.get("max_position_embeddings")
    if family in _ABSOLUTE_POSITIONS and isinstance(positions, int):
        limits.append(positions - first_position(family, config))
    return min(limits)


def first_position(family: str, config: Mapping[str, Any]) -> int:
    """Position number of the first token: RoBERTa's numbers start after the padding id."""
    return int(config.get("pad_token_id", 1)) + 1 if "roberta" in family else 0


def module_types(folder: Path) -> list[str]:
    """The ``type`` of every entry of modules.json; empty without one. Raises StartupError when it is malformed."""
    return [str(entry.get("type", "")) for entry in _modules(folder)]


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise StartupError(f"{path} must hold a list of modules")
    return entries


def _pooling_of(folder: Path) -> Pooling | None:
    config = read_json(folder / "1_Pooling" / "config.json")
    if not config:
        return None
    if config.get("include_prompt") is False:
        raise StartupError("the checkpoint's pooling leaves out prompt tokens (include_prompt: false), which is not served")
    mode = config.get("pooling_mode")
    if mode is None:
        chosen = [name for key, name in _LEGACY_MODES.items() if config.get(key)]
        if len(chosen) > 1:
            raise StartupError(f"the checkpoint joins several poolings ({', '.join(chosen)}), which is not served")
        mode = chosen[0] if chosen else "mean"
    if mode not in get_args(Pooling):
        raise StartupError(f"the checkpoint's pooling mode {mode!r} is not served; choose another with --pooling")
    return cast(Pooling, mode)


def _dense_layers(folder: Path) -> tuple[DenseLayer, ...]:
    layers = []
    for entry in _modules(folder):
        name = str(entry.get("type", "")).rsplit(".", 1)[-1]
        if name in ("Transformer", "Pooling", "Normalize"):
            continue
        if name != "Dense":
            raise StartupError(f"the checkpoint uses the module {name!r}, which is not served")
        place = folder / Path(str(entry.get("path", ""))).name
        config = read_json(place / "config.json")
        try:
            layers.append(
                DenseLayer(
                    folder=place,
                    in_features=int(config["in_features"]),
                    out_features=int(config["out_features"]),
                    bias=bool(config.get("bias", True)),
                    activation=str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1],
                )
            )
        except (KeyError, TypeError, ValueError):
            raise StartupError(f"{place / 'config.json'} does not describe a dense layer") from None
    return tuple(layers)
