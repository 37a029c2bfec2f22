"""How long a row may grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxcel.runners.generate.decoder.rope import rope_parameters, scaled_window_tokens
from mlxcel.runners.generate.decoder.spec import spec_from_config
from mlxcel.runners.generate.options import RunnerOptions

UNBOUNDED_WINDOW_TOKENS = 131_072  # for recurrent models, whose config states no window
_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")


def declared_window_tokens(config: Mapping[str, Any]) -> int:
    """The model's own window in tokens, position scaling included, from the contents of ``config.json``.

    Operator's overrides are applied to the config beforehand (:meth:`RopeOverrides.apply`).
    """
    text: Mapping[str, Any] = config.get("text_config") or config
    spec = spec_from_config(text)
    if spec is not None:
        return spec.context_tokens
    trained = next((text[name] for name in _NAMES if isinstance(text.get(name), int) and text[name] > 0), 0)
    return scaled_window_tokens(rope_parameters(text), trained) if trained else UNBOUNDED_WINDOW_TOKENS


def window_tokens(options: RunnerOptions, model_tokens: int) -> int:
    """The window of one row: what was asked for, at most the model's."""
    return min(options.context_tokens or model_tokens, model_tokens)
