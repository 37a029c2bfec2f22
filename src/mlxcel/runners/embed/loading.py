"""Loads the transformer and the tokenizer of embedding and reranking checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mlxcel.core.errors import StartupError
from mlxcel.runners.building import TRANSFORMERS_LOCK
from mlxcel.runners.hub.folder import read_json
from mlxcel.runners.weights import open_checkpoint

_OWN_TYPES = {"llama_bidirec": "llama"}  # model types that transformers knows under another name


def reads_segments(folder: Path) -> bool:
    """Whether the checkpoint's tokenizer gives its model segment numbers; some BERT models were trained without."""
    try:
        names = AutoTokenizer.from_pretrained(folder, local_files_only=True).model_input_names
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError):
        return False
    return "token_type_ids" in names


def load_tokenizer_backend(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a checkpoint without the padding and truncation that its file may carry.

    Raises:
        StartupError: there is no tokenizer that can be read.
    """
    try:
        backend: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
        if not (folder / "tokenizer.json").is_file():
            raise StartupError(f"the tokenizer of {folder} cannot be read: {error}") from None
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_padding()
    backend.no_truncation()
    return backend


def padding_id(folder: Path) -> int:
    """The id that fills up texts of fixed width: the padding token, else the end token, else 0."""
    names = read_json(folder / "tokenizer_config.json")
    backend = load_tokenizer_backend(folder)
    for entry in (names.get("pad_token"), names.get("eos_token")):
        text = entry.get("content") if isinstance(entry, dict) else entry
        found = backend.token_to_id(text) if isinstance(text, str) else None
        if found is not None:
            return found
    return 0


def load_transformer(
    folder: Path, auto_class: Any, *, device: torch.device, dtype: torch.dtype, unused: tuple[str, ...] = ()
) -> PreTrainedModel:
    """A transformers model with the checkpoint's weights, in evaluation mode.

    Args:
        auto_class: a class of transformers' ``Auto`` family, or a model class.
        unused: beginnings of names of weights that the checkpoint may lack because nothing reads them.

    Raises:
        StartupError: transformers cannot build it, or weights are missing.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # its report of unused heads is no news
    checkpoint = open_checkpoint(folder)
    try:
        config = _config(folder, checkpoint.config)
        model_class = auto_class._model_mapping[type(config)] if hasattr(auto_class, "_model_mapping") else auto_class
        weights = dict(checkpoint.state_dict_iter(dtype))
        settings = {"config": config, "dtype": dtype, "output_loading_info": True}
        with TRANSFORMERS_LOCK:
            model, loading = model_class.from_pretrained(None, state_dict=weights, **settings)
    except (KeyError, ValueError, ImportError, OSError, RuntimeError, TypeError) as error:
        model_type = checkpoint.config.get("model_type")
        raise StartupError(f"transformers cannot load model type {model_type!r}: {error}") from error
    missing = [name for name in loading["missing_keys"] if not name.startswith(unused or ("\0",))]
    if missing:
        raise StartupError(f"the checkpoint lacks {len(missing)} tensors, first {min(missing)}")
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded


def _config(folder: Path, raw: dict[str, Any]) -> PreTrainedConfig:
    renamed = _OWN_TYPES.get(str(raw.get("model_type")))
    if renamed is not None:
        settings = {key: value for key, value in raw.items() if key not in ("model_type", "auto_map", "architectures")}
        return AutoConfig.for_model(renamed, **settings)
    return AutoConfig.from_pretrained(folder, local_files_only=True)
