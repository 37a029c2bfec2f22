"""Loads transformers models from any checkpoint format."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mlxcel.core.errors import StartupError
from mlxcel.runners.building import TRANSFORMERS_LOCK
from mlxcel.runners.generate.options import RunnerOptions

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint


def load_config(checkpoint: Checkpoint, options: RunnerOptions) -> PreTrainedConfig:
    """The checkpoint's config as transformers' object, with the operator's position scaling.

    Raises:
        StartupError: unknown to this version of transformers, or it needs code from the checkpoint.
    """
    model_type = checkpoint.config.get("model_type")
    if options.rope.active and options.rope.yarn_ext_factor is not None and options.rope.yarn_ext_factor >= 0:
        raise StartupError(f"--yarn-ext-factor works with native decoders only, and {model_type!r} has none")
    changed = options.rope.apply(checkpoint.config) if options.rope.active else checkpoint.config
    try:
        if checkpoint.kind == "safetensors":
            overrides = {key: value for key, value in changed.items() if value != checkpoint.config.get(key)}
            return AutoConfig.from_pretrained(
                checkpoint.path, trust_remote_code=options.trust_remote_code, local_files_only=True, **overrides
            )
        with TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(changed), encoding="utf-8")
            return AutoConfig.from_pretrained(folder)
    except (KeyError, ValueError, TypeError, OSError) as error:
        hint = "; --trust-remote-code runs the code it brings" if checkpoint.config.get("auto_map") else ""
        raise StartupError(f"transformers cannot read the config of model type {model_type!r}: {error}{hint}") from error


def load_model(
    checkpoint: Checkpoint, config: PreTrainedConfig, options: RunnerOptions, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """Build the model and load its weights, in evaluation mode on ``device``.

    Raises:
        StartupError: transformers has no causal model for it, or a weight format that this machine cannot run.
    """
    transformers_logging.disable_progress_bar()
    settings: dict[str, Any] = {
        "config": config,
        "dtype": dtype,
        "trust_remote_code": options.trust_remote_code,
        "output_loading_info": True,
    }
    try:
        if checkpoint.kind == "safetensors" and getattr(config, "quantization_config", None) is None:
            with TRANSFORMERS_LOCK:
                model, loading = AutoModelForCausalLM.from_pretrained(
                    checkpoint.path, use_safetensors=True, local_files_only=True, **settings
                )
        else:
            config.__dict__.pop("quantization_config", None)  # the checkpoint hands out decoded weights
            weights = dict(checkpoint.state_dict_iter(dtype))
            model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            with TRANSFORMERS_LOCK:
                model, loading = model_class.from_pretrained(None, state_dict=weights, **settings)
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        raise StartupError(f"transformers cannot load model type {config.model_type!r}: {error}") from error
    if loading["missing_keys"]:
        raise StartupError(
            f"the checkpoint lacks {len(loading['missing_keys'])} tensors, first {min(loading['missing_keys'])}"
        )
    return model.to(device).eval()


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a config that describes the language model."""
    return config.get_text_config(decoder=True)


def settle_rope(config: PreTrainedConfig, context_tokens: int) -> None:
    """Make position scaling independent of the batch.

    transformers recomputes "dynamic" and "longrope" frequencies from the longest position of the batch, which would let a
    stranger change a row's answer. Both are settled here for the window that is served: dynamic NTK takes the base of a full
    window, LongRoPE its long factors when the window is larger than the trained one, else its short ones.
    """
    text = text_config(config)
    parameters = getattr(text, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for part in nested or [parameters]:
        _settle(part, text, context_tokens)


def _settle(parameters: dict[str, Any], text: PreTrainedConfig, context_tokens: int) -> None:
    match parameters.get("rope_type"):
        case "dynamic":
            trained, factor = int(text.max_position_embeddings), float(parameters["factor"])
            head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            rotary_dim = int(head_dim * float(parameters.get("partial_rotary_factor") or 1.0))
            stretch = factor * max(context_tokens, trained) / trained - (factor - 1)
            parameters["rope_theta"] = float(parameters["rope_theta"]) * stretch ** (rotary_dim / (rotary_dim - 2))
            parameters["rope_type"] = "default"
            parameters.pop("factor")
        case "longrope":
            long = context_tokens > int(parameters["original_max_position_embeddings"])
            kept = parameters["long_factor" if long else "short_factor"]
            parameters["long_factor"] = parameters["short_factor"] = kept
