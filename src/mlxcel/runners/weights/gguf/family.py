"""The shape of an entry in the table of GGUF architectures, and what most architectures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxcel.runners.weights.combine import Combine
from mlxcel.runners.weights.gguf import config
from mlxcel.runners.weights.gguf.metadata import Metadata
from mlxcel.runners.weights.gguf.orders import as_stored
from mlxcel.runners.weights.gguf.recipes import Order

Merge = tuple[tuple[str, ...], Combine | None]
"""GGUF names of a block, and how they combine; None stacks their rows."""


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture's files translate.

    Attributes:
        model_type: Hugging Face model type.
        fields: configuration fields read from one metadata key each, over ``COMMON_FIELDS``; None drops a common field.
        fixed: configuration fields that are constant for the architecture.
        derived: computes the remaining fields.
        names: tensor names over ``COMMON_NAMES``: GGUF name without "blk.N." and without ".weight" or ".bias" (or with
            it, for names that do not keep it) to the name inside ``layer``; ``{expert}`` spreads a stack over its experts.
        merges: Hugging Face name inside ``layer`` -> the GGUF tensors that make it.
        changes: GGUF name as in ``names`` -> what to do to the tensor.
        layer: prefix of a block's names.
        orders: row orders to undo, by GGUF name as in ``names`` or by the target of a merge.
        column_orders: as ``orders``, for columns.
        shifted_norms: norm weights are stored with 1 added, except those of state-space layers.
    """

    model_type: str
    fields: Mapping[str, str | None] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    derived: Callable[[Metadata], dict[str, Any]] = config.plain_rope
    names: Mapping[str, str] = field(default_factory=dict)
    merges: Mapping[str, Merge] = field(default_factory=dict)
    changes: Mapping[str, Combine] = field(default_factory=dict)
    layer: str = "model.layers.{layer}."
    orders: Callable[[Metadata], Mapping[str, Order]] = as_stored
    column_orders: Callable[[Metadata], Mapping[str, Order]] = as_stored
    shifted_norms: bool = False


COMMON_FIELDS: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}

COMMON_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}

TOP_NAMES: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
