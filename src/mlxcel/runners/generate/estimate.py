"""Estimates the memory a model will take without loading it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxcel.runners.generate.build import native_spec, pick_device
from mlxcel.runners.generate.memory import free_bytes, pool_block_count
from mlxcel.runners.generate.options import BLOCK_TOKENS, KvType, RunnerOptions
from mlxcel.runners.generate.providers import Declined, default_dtype
from mlxcel.runners.generate.window import declared_window_tokens, window_tokens

if TYPE_CHECKING:
    from mlxcel.runners.weights import Checkpoint

HEADROOM_FACTOR = 1.20
_PIECE_TOKENS = 2048  # prompt tokens of one step
_ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes a model will take, and the budget they are held against.

    Attributes:
        weights_bytes: weights in the form they are computed with.
        kv_bytes_total: keys and values of all rows at their full window, as far as the KV budget goes.
        activation_bytes: intermediate results of the largest step.
        headroom_bytes: allowance for what is not modelled.
        total_bytes: the sum.
        budget_bytes: what is there.
    """

    weights_bytes: int
    kv_bytes_total: int
    activation_bytes: int
    headroom_bytes: int
    total_bytes: int
    budget_bytes: int


def estimate_memory(
    checkpoint: Checkpoint, options: RunnerOptions, *, headroom_factor: float = HEADROOM_FACTOR, limit_bytes: int = 0
) -> MemoryEstimate:
    """Estimate from the config and the tensor directory alone.

    Args:
        headroom_factor: total over the modelled parts, at least 1.
        limit_bytes: budget; 0 is the memory that is free now.
    """
    item_bytes = _ITEM_BYTES.get(options.dtype) or default_dtype(pick_device(options)).itemsize
    config = checkpoint.config.get("text_config") or checkpoint.config
    native = not isinstance(native_spec(checkpoint, options), Declined)
    weights_bytes = _weights_bytes(checkpoint, item_bytes, keeps_packed=native and options.dtype != "fp32")
    context_tokens = window_tokens(options, declared_window_tokens(config))
    token_bytes = _kv_bytes_per_token(config, options.kv_types, item_bytes)
    block_count = pool_block_count(options, context_tokens, token_bytes) if token_bytes else 0
    kv_bytes = block_count * BLOCK_TOKENS * token_bytes
    activation_bytes = _activation_bytes(config, options.max_rows, min(context_tokens, _PIECE_TOKENS), item_bytes)
    modelled = weights_bytes + kv_bytes + activation_bytes
    headroom_bytes = math.ceil(modelled * (max(headroom_factor, 1.0) - 1.0))
    return MemoryEstimate(
        weights_bytes=weights_bytes,
        kv_bytes_total=kv_bytes,
        activation_bytes=activation_bytes,
        headroom_bytes=headroom_bytes,
        total_bytes=modelled + headroom_bytes,
        budget_bytes=limit_bytes or free_bytes(pick_device(options)),
    )


def _weights_bytes(checkpoint: Checkpoint, item_bytes: int, *, keeps_packed: bool) -> int:
    dense_bytes = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names()) * item_bytes
    return min(dense_bytes, checkpoint.weights_bytes) if keeps_packed else dense_bytes


def _kv_bytes_per_token(config: Mapping[str, Any], kv_types: tuple[KvType, KvType], item_bytes: int) -> int:
    """Keys and values of one token over all attention layers; the fixed state of other layers is left to the headroom."""
    heads = _first(config, "num_attention_heads", "n_head", "n_heads")
    width = _first(config, "hidden_size", "n_embd", "d_model", "dim")
    if not heads or not width:
        return 0
    kinds = config.get("layer_types") or config.get("layers_block_type") or config.get("hybrid_override_pattern")
    layers = _first(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if isinstance(kinds, list):
        layers = sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    head_dim = _first(config, "head_dim") or width // heads
    if _first(config, "kv_lora_rank"):  # latent attention is kept expanded
        key_dim = _first(config, "qk_nope_head_dim") + _first(config, "qk_rope_head_dim")
        return layers * heads * (key_dim + _first(config, "v_head_dim")) * item_bytes
    kv_heads = _first(config, "num_key_value_heads", "num_kv_heads", "n_kv_heads") or heads
    return layers * kv_heads * sum(_vector_bytes(kind, head_dim, item_bytes) for kind in kv_types)


def _vector_bytes(kind: KvType, head_dim: int, item_bytes: int) -> int:
    """One head's key or value of one token; int8 has a float32 scale besides."""
    return head_dim + 4 if kind == "int8" else head_dim * {"bf16": 2, "fp32": 4}.get(kind, item_bytes)


def _activation_bytes(config: Mapping[str, Any], rows: int, piece_tokens: int, item_bytes: int) -> int:
    """A step's widest layer for every token (input, fused projections, gate and up), and float32 logits of every row."""
    width = _first(config, "hidden_size", "n_embd", "d_model", "dim")
    inner = _first(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * width
    vocab_size = _first(config, "vocab_size")
    return piece_tokens * (6 * width + 3 * inner) * item_bytes + 2 * rows * vocab_size * 4


def _first(config: Mapping[str, Any], *names: str) -> int:
    """The first of several spellings of a size that the config has, 0 when none."""
    return next((int(value) for name in names if isinstance(value := config.get(name), int)), 0)
